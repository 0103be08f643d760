// torch.amp: adds scaled gradients to unscaled ones, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let mut grads = step.unscale()?;
    grads.backward(loss)?;
    let _ = grads.step()?;
    Ok(())
}

fn main() {}
