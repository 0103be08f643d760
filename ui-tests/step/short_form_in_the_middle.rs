// torch.amp: a step in the middle of another applies the gradients of both, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    opt.backward_step(loss)?;
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
