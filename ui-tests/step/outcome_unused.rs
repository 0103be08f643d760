// Apex: prints "Gradient overflow.  Skipping step"; the schedule advances all the same.
#![deny(unused_must_use)]

use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    step.unscale()?.step()?;
    Ok(())
}

fn main() {}
