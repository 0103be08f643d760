// Apex: at O2, `optimizer.step()` before the first `scale_loss` is an AttributeError.
use tch::Tensor;
use tch_amp::{AmpOptimizer, O2, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>, loss: &Tensor) {
    loss.backward();
    opt.step();
}

fn main() {}
