// torch: calling a model without `forward` is a NotImplementedError.
use tch::{Tensor, nn::ModuleT};
use tch_amp::{AmpModel, O2};

#[derive(Debug)]
struct Transformer;

fn validate(model: &AmpModel<O2, Transformer>, xs: &Tensor) -> Tensor {
    model.forward_t(xs, false)
}

fn main() {}
