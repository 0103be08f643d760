// Apex: `loss_id=1` without `num_losses` in `initialize` is an IndexError.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, optim::Adam};
use typenum::U1;

fn train(opt: &mut AmpOptimizer<O2, Adam>, loss: &Tensor) -> Result<(), StepError> {
    opt.begin().backward_of::<U1>(loss)
}

fn main() {}
