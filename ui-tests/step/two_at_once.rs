// torch.amp: the second `unscale_` of the same optimizer is a RuntimeError.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut first = opt.begin();
    let mut second = opt.begin();
    first.backward(loss)?;
    second.backward(loss)?;
    let _ = first.unscale()?.step()?;
    let _ = second.unscale()?.step()?;
    Ok(())
}

fn main() {}
