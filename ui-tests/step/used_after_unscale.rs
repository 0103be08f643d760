// torch.amp: a `scaler.scale(loss).backward()` after `unscale_` adds scaled gradients, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let grads = step.unscale()?;
    step.backward(loss)?;
    let _ = grads.step()?;
    Ok(())
}

fn main() {}
