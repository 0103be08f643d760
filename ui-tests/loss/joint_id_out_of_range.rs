// Apex: `scale_loss(loss, [a, b], loss_id=2)` with `num_losses=2` is an IndexError.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, joint, optim::Sgd};
use typenum::U2;

type Optimizer = AmpOptimizer<O2, Sgd, U2>;

fn train(a: &mut Optimizer, b: &mut Optimizer, loss: &Tensor) -> Result<(), StepError> {
    let (mut step_a, mut step_b) = (a.begin(), b.begin());
    joint((&mut step_a, &mut step_b)).backward_of::<U2>(loss)
}

fn main() {}
