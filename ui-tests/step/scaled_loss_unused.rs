// torch.amp: `scaler.scale(loss)` without `.backward()` ends in an AssertionError of `step`.
#![deny(unused_must_use)]

use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.scale_loss(loss)?;
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
