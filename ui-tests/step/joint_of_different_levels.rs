// Apex: one process has one level, so that optimizers of two levels cannot be told apart.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O1, O2, StepError, joint, optim::Sgd};

fn train(a: &mut AmpOptimizer<O1, Sgd>, b: &mut AmpOptimizer<O2, Sgd>, loss: &Tensor) -> Result<(), StepError> {
    let (mut step_a, mut step_b) = (a.begin(), b.begin());
    joint((&mut step_a, &mut step_b)).backward(loss)
}

fn main() {}
