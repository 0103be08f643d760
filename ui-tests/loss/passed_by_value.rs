// torch: passing `loss.item()` is an AttributeError, since a number has no `backward`.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    opt.backward_step(loss.double_value(&[]))?;
    Ok(())
}

fn main() {}
