// Apex: at O1, a patched function with other arguments than it expects is an AssertionError.
use tch::{Tensor, nn::Linear};
use tch_amp::{AmpModel, O1};

fn predict(model: &AmpModel<O1, Linear>) -> Tensor {
    model.forward(&[0.5, 0.25])
}

fn main() {}
