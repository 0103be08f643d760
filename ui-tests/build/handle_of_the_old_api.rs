// Apex: `amp.init()` and `handle.scale_loss` are of the old API: a RuntimeError says so.
use tch::Tensor;

fn train(loss: &Tensor) {
    let handle = tch_amp::init();
    handle.scale_loss(loss);
}

fn main() {}
