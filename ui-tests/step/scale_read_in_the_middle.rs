// torch.amp: pickling the scaler in the middle of an iteration is an AssertionError.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let scalers = opt.scalers();
    let _ = step.unscale()?.step()?;
    println!("{scalers:?}");
    Ok(())
}

fn main() {}
