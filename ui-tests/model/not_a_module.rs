// torch: calling a model without `forward` is a NotImplementedError.
use tch::{Tensor, nn::ModuleT};
use tch_amp::{AmpModel, O2};

#[derive(Debug)]
struct Transformer;

fn evaluate(model: &impl ModuleT, xs: &Tensor) -> Tensor {
    model.forward_t(xs, false)
}

fn validate(model: &AmpModel<O2, Transformer>, xs: &Tensor) -> Tensor {
    evaluate(model, xs)
}

fn main() {}
