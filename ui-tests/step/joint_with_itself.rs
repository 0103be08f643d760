// Apex: `scale_loss(loss, [optimizer, optimizer])` unscales the gradients twice, unseen.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, StepError, joint, optim::Sgd};

fn train(opt: &mut AmpOptimizer<O2, Sgd>, loss: &Tensor) -> Result<(), StepError> {
    let mut step = opt.begin();
    joint((&mut step, &mut step)).backward(loss)
}

fn main() {}
