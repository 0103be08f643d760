// Apex: `scale_loss` with an optimizer that `initialize` has not seen is an AttributeError: `_amp_stash`.
use tch::{Tensor, nn::Optimizer};
use tch_amp::{AmpOptimizer, O2, StepError};

fn train(opt: &mut AmpOptimizer<O2>, loss: &Tensor) -> Result<(), StepError> {
    opt.backward_step(loss)?;
    Ok(())
}

fn fine_tune(mut adam: Optimizer, loss: &Tensor) -> Result<(), StepError> {
    train(&mut adam, loss)
}

fn main() {}
