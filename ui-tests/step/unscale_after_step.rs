// torch.amp: RuntimeError: unscale_() is being called after step().
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let grads = step.unscale()?;
    let _ = grads.step()?;
    let _ = step.unscale()?;
    Ok(())
}

fn main() {}
