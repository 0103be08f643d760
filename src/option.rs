//! Which level takes which option: one trait for each option that some level refuses.
//!
//! The empty enums at the end carry the options' names into compiler messages.

use half::{bf16, f16};
use static_assertions::{assert_impl_all, assert_not_impl_any};

use crate::{
    builder::state::{InConfig, NotSet},
    dtype::LowPrecision,
    level::{O0, O1, O2, O3, OptLevel},
    scaler::{Dynamic, LossScale, Static},
};

/// Levels that take `keep_batchnorm_fp32`.
#[diagnostic::on_unimplemented(
    message = "`keep_batchnorm_fp32` cannot be set at opt level `{Self}`",
    label = "`{Self}` does not cast the model, so batch norm keeps its FP32 weights: remove this option",
    note = "`keep_batchnorm_fp32` belongs to the levels that cast the whole model: `O2` and `O3`"
)]
pub trait AllowsKeepBatchnormFp32: OptLevel {}
impl<H: LowPrecision> AllowsKeepBatchnormFp32 for O2<H> {}
impl<H: LowPrecision> AllowsKeepBatchnormFp32 for O3<H> {}

/// Levels that take `keep_fp32`.
#[diagnostic::on_unimplemented(
    message = "`keep_fp32` cannot be set at opt level `{Self}`",
    label = "`{Self}` does not cast the model, so all of it stays in FP32: remove this option",
    note = "`keep_fp32` belongs to the levels that cast the whole model: `O2` and `O3`"
)]
pub trait AllowsKeepFp32: OptLevel {}
impl<H: LowPrecision> AllowsKeepFp32 for O2<H> {}
impl<H: LowPrecision> AllowsKeepFp32 for O3<H> {}

/// Levels that take `master_weights`.
#[diagnostic::on_unimplemented(
    message = "`master_weights` cannot be set at opt level `{Self}`",
    label = "`{Self}` leaves the weights in FP32, so it has no master weights: remove this option, or choose `O2`",
    note = "master weights are FP32 copies of 16-bit weights: an option of `O2` and `O3`"
)]
pub trait AllowsMasterWeights: OptLevel {}
impl<H: LowPrecision> AllowsMasterWeights for O2<H> {}
impl<H: LowPrecision> AllowsMasterWeights for O3<H> {}

/// Levels that take `rounding`.
#[diagnostic::on_unimplemented(
    message = "`rounding` cannot be set at opt level `{Self}`",
    label = "only `O3<bf16>` rounds new values to weights without masters: remove this option, or choose `O3<bf16>`",
    note = "stochastic rounding stands in for master weights"
)]
pub trait AllowsRounding: OptLevel {}
impl AllowsRounding for O3<bf16> {}

/// `S::Option: NotWith<option>`: the builder has not set an option that excludes the other.
#[diagnostic::on_unimplemented(
    message = "`master_weights` and `rounding` exclude each other",
    label = "the other of the two was set earlier in this chain: remove one",
    note = "stochastic rounding stands in for master weights, which `O3` does not have by default"
)]
pub trait NotWith<Name> {}
impl<Name> NotWith<Name> for NotSet {}
impl<Name> NotWith<Name> for InConfig {}

/// Levels that take `patch_torch_functions`.
#[diagnostic::on_unimplemented(
    message = "`patch_torch_functions` cannot be set at opt level `{Self}`",
    label = "only `O1` casts around single operations: remove this option, or choose `O1`"
)]
pub trait AllowsPatchTorchFunctions: OptLevel {}
impl<H: LowPrecision> AllowsPatchTorchFunctions for O1<H> {}

/// `L: AllowsCastModelType<T>`: naming `T` as the type of the weights agrees with level `L`.
#[diagnostic::on_unimplemented(
    message = "`cast_model_type` cannot be `{T}` at opt level `{Self}`",
    label = "the level decides the type of the weights: remove this option, or choose another level",
    note = "write `O2<bf16>` or `O3<bf16>` for bfloat16, `O2` or `O3` for float16; `O0` and `O1` leave the weights in `f32`"
)]
pub trait AllowsCastModelType<T>: OptLevel {}
impl AllowsCastModelType<f32> for O0 {}
impl<H: LowPrecision> AllowsCastModelType<f32> for O1<H> {}
impl<H: LowPrecision> AllowsCastModelType<H> for O2<H> {}
impl<H: LowPrecision> AllowsCastModelType<H> for O3<H> {}

/// A type that a model's outputs can be cast to: `f32`, `f16` or `bf16`.
#[diagnostic::on_unimplemented(
    message = "`cast_model_outputs` cannot be `{Self}`",
    label = "expected `f32`, `half::f16` or `half::bf16`"
)]
pub trait OutputType: sealed::OutputType {
    /// The libtorch scalar type.
    const KIND: tch::Kind;
}
impl OutputType for f32 {
    const KIND: tch::Kind = tch::Kind::Float;
}
impl<H: LowPrecision> OutputType for H {
    const KIND: tch::Kind = <H as LowPrecision>::KIND;
}

/// `S::Option: Unset<option>`: the option has not been set on this builder.
#[diagnostic::on_unimplemented(
    message = "`{Name}` is set twice on the same builder",
    label = "`{Name}` was already set earlier in this chain: remove one of the two",
    note = "a builder made by `Amp::from_config` counts every option of the config as set"
)]
pub trait Unset<Name> {}
impl<Name> Unset<Name> for NotSet {}

/// What [`loss_scale`](crate::builder::AmpBuilder::loss_scale) takes: [`Static`] or [`Dynamic`],
/// or a [`LossScale`], which is one of the two.
#[diagnostic::on_unimplemented(
    message = "`loss_scale` cannot be `{Self}`",
    label = "write `Static::new(…)` for a scale that never changes, or `Dynamic::default()`"
)]
pub trait LossScaleSetting: Into<LossScale> {}
impl LossScaleSetting for Static {}
impl LossScaleSetting for Dynamic {}
impl LossScaleSetting for LossScale {}

/// Never implemented: `min_loss_scale` and `max_loss_scale` are settings of
/// [`Dynamic`](crate::Dynamic) alone, and this trait's message says so elsewhere.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`min_loss_scale` and `max_loss_scale` are settings of a dynamic loss scale",
    label = "write `.loss_scale(Dynamic::default().min_loss_scale(…).max_loss_scale(…))`"
)]
pub trait LimitsOfDynamic {}

/// Never implemented: what users of `tch` and torch call on an optimizer, a [`Step`] does here.
///
/// [`Step`]: crate::Step
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "an `AmpOptimizer` has no `zero_grad` and no `step` of its own",
    label = "write `opt.backward_step(&loss)?`, or `opt.begin()`, `backward`, `unscale` and `step`",
    note = "each step starts without gradients, so there is nothing to zero"
)]
pub trait DoneByTheStep {}

mod sealed {
    pub trait OutputType {}
    impl OutputType for f32 {}
    impl<H: super::LowPrecision> OutputType for H {}
}

macro_rules! names {
    ($($name:ident)*) => { $(
        #[doc = concat!("The name of the option `", stringify!($name), "`.")]
        #[allow(non_camel_case_types)]
        #[derive(Debug)]
        pub enum $name {}
    )* };
}
names! {
    enabled cast_model_type patch_torch_functions keep_batchnorm_fp32 keep_fp32 master_weights
    rounding loss_scale num_losses cast_model_outputs
}

assert_impl_all!(O2<f16>: AllowsKeepBatchnormFp32, AllowsMasterWeights, AllowsCastModelType<f16>);
assert_impl_all!(O3<bf16>: AllowsKeepBatchnormFp32, AllowsMasterWeights, AllowsCastModelType<bf16>);
assert_impl_all!(O1<f16>: AllowsPatchTorchFunctions, AllowsCastModelType<f32>);
assert_not_impl_any!(
    O1<f16>: AllowsKeepBatchnormFp32, AllowsKeepFp32, AllowsMasterWeights, AllowsCastModelType<f16>
);
assert_not_impl_any!(O0: AllowsPatchTorchFunctions, AllowsKeepBatchnormFp32, AllowsMasterWeights);
assert_not_impl_any!(O2<f16>: AllowsPatchTorchFunctions, AllowsCastModelType<bf16>);
