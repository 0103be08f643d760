// torch.amp: `scaler.scale(loss).backward()` after `unscale_` of one of two optimizers mixes gradients, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, joint, optim::Sgd};

fn train(a: &mut AmpOptimizer<O2, Sgd>, b: &mut AmpOptimizer<O2, Sgd>, loss: &Tensor) -> Result<(), StepError> {
    let mut step_a = a.begin().unscale()?;
    let mut step_b = b.begin();
    joint((&mut step_a, &mut step_b)).backward(loss)
}

fn main() {}
