//! The 16-bit types a level can compute in.

use half::{bf16, f16};
use tch::Kind;

use crate::scaler::LossScale;

/// A 16-bit floating-point type: [`half::f16`] or [`half::bf16`].
///
/// `KIND` is the libtorch type. It is not taken from `tch::kind::Element`, whose entry for
/// `half::bf16` says `Half`: `Tensor::from_slice(&[bf16::ONE])` reads back as 1.875.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a 16-bit type an opt level can compute in",
    label = "expected `half::f16` or `half::bf16`"
)]
pub trait LowPrecision:
    sealed::LowPrecision + Copy + std::fmt::Debug + Default + Send + Sync + 'static
{
    /// The libtorch scalar type.
    const KIND: Kind;
    /// The name used in messages, config files and checkpoints: `"f16"` or `"bf16"`.
    const NAME: &'static str;
    /// The loss scale of a level that computes in this type, unless the builder says otherwise:
    /// dynamic for `f16`, a static 1 for `bf16`, whose exponent range is that of FP32.
    const DEFAULT_LOSS_SCALE: LossScale;
}

impl LowPrecision for f16 {
    const KIND: Kind = Kind::Half;
    const NAME: &'static str = "f16";
    const DEFAULT_LOSS_SCALE: LossScale = LossScale::DYNAMIC;
}

impl LowPrecision for bf16 {
    const KIND: Kind = Kind::BFloat16;
    const NAME: &'static str = "bf16";
    const DEFAULT_LOSS_SCALE: LossScale = LossScale::ONE;
}

mod sealed {
    #[diagnostic::on_unimplemented(
        message = "the set of 16-bit types is closed: `LowPrecision` cannot be implemented for `{Self}`",
        label = "use `half::f16` or `half::bf16`"
    )]
    pub trait LowPrecision {}
    impl LowPrecision for half::f16 {}
    impl LowPrecision for half::bf16 {}
}
