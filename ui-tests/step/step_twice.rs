// torch.amp: RuntimeError: step() has already been called since the last update().
use tch_amp::{OptLevel, Optimizer, Step, StepError, loss::LossCount, step::Unscaled};

fn finish<L: OptLevel, O: Optimizer, N: LossCount>(
    grads: Step<'_, L, O, N, Unscaled>,
) -> Result<(), StepError> {
    let _ = grads.step()?;
    let _ = grads.step()?;
    Ok(())
}

fn main() {}
