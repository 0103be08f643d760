// Apex: any `torch.dtype` passes as `cast_model_type` at O2, and fails in the first step.
use tch::Kind;
use tch_amp::{LossScale, LowPrecision};

#[derive(Debug, Clone, Copy, Default)]
struct Float8;

impl LowPrecision for Float8 {
    const KIND: Kind = Kind::Float8e5m2;
    const NAME: &'static str = "f8";
    const DEFAULT_LOSS_SCALE: LossScale = LossScale::DYNAMIC;
}

fn main() {}
