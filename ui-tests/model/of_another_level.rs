// Apex: one process has one level; a second `initialize` silently replaces the first.
use tch::{
    Tensor,
    nn::{ModuleT, Sequential},
};
use tch_amp::{AmpModel, AmpOptimizer, O1, O2, OptLevel, StepError, optim::AdamW};

fn train<L: OptLevel>(
    model: &AmpModel<L, Sequential>,
    opt: &mut AmpOptimizer<L, AdamW>,
    xs: &Tensor,
) -> Result<(), StepError> {
    opt.backward_step(&model.forward_t(xs, true))?;
    Ok(())
}

fn mixed_up(
    model: AmpModel<O1, Sequential>,
    mut opt: AmpOptimizer<O2, AdamW>,
    xs: &Tensor,
) -> Result<(), StepError> {
    train(&model, &mut opt, xs)
}

fn main() {}
