// Apex: `scale_loss(loss, optimizer, loss_id=2)` with `num_losses=2` is an IndexError.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O1, StepError, optim::Adam};
use typenum::U2;

fn train(opt: &mut AmpOptimizer<O1, Adam, U2>, loss: &Tensor) -> Result<(), StepError> {
    opt.begin().scale_loss_of::<U2>(loss)?.backward()
}

fn main() {}
