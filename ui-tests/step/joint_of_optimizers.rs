// Apex: a tuple of optimizers in `scale_loss` passes, and spoils accumulated gradients, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, joint, optim::Sgd};

fn train(a: &mut AmpOptimizer<O2, Sgd>, b: &mut AmpOptimizer<O2, Sgd>, loss: &Tensor) -> Result<(), StepError> {
    joint((a, b)).backward(loss)
}

fn main() {}
