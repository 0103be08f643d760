// torch.amp: a gradient that becomes NaN between `unscale_` and `step` is applied, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    let mut grads = step.unscale()?;
    for (_name, grad) in grads.grads()? {
        let _ = grad.log_();
    }
    let _ = grads.step()?;
    Ok(())
}

fn main() {}
