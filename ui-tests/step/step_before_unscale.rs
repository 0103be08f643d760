// Apex: `step()` after a backward pass with `delay_unscale=True` applies scaled gradients, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let _ = step.step()?;
    Ok(())
}

fn main() {}
