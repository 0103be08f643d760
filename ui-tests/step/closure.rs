// Apex: at O2, `step(closure)` is a RuntimeError; torch.amp refuses `closure=`, and misses it by position.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::Sgd};

fn train(
    opt: &mut AmpOptimizer<O2, Sgd>,
    loss: impl Fn() -> Tensor,
) -> Result<(), StepError> {
    let mut step = opt.begin();
    step.backward(&loss())?;
    let _ = step.unscale()?.step(loss)?;
    Ok(())
}

fn main() {}
