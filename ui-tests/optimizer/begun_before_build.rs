// Apex: `scale_loss` before `initialize` is a RuntimeError.
use tch::Tensor;
use tch_amp::{StepError, optim::AdamW};

fn train(loss: &Tensor) -> Result<(), StepError> {
    let mut opt = AdamW::new(1e-3);
    let mut step = opt.begin();
    step.backward(loss)?;
    let _ = step.unscale()?.step()?;
    Ok(())
}

fn main() {}
