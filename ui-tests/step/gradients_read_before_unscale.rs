// Apex: inside `scale_loss` each `.grad` is a scaled gradient, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    for (name, grad) in step.grads()? {
        println!("{name}: {grad:?}");
    }
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
