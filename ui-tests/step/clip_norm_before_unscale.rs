// torch.amp: clips to max_norm / 65536, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    step.clip_grad_norm(1.0)?;
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
