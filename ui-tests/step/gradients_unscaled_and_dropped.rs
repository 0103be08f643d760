// torch.amp: `unscale_` and `update` without `step` train nothing, unseen.
#![deny(unused_must_use)]

use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    step.unscale()?;
    Ok(())
}

fn main() {}
