// torch.amp: a schedule may change the rate between `unscale_` and `step`, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(loss)?;
    opt.set_lr(1e-4).ok();
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
