// Apex: inside `scale_loss` each `.grad` is a scaled gradient, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let _grads = step.grads();
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
