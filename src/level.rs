//! Opt levels: zero-sized types with their default options as associated constants.

use std::{fmt::Debug, marker::PhantomData};

use half::{bf16, f16};
use tch::Kind;

use crate::{
    config::{AnyLevel, Properties},
    dtype::LowPrecision,
    scaler::LossScale,
};

/// An opt level: [`O0`], [`O1`], [`O2`] or [`O3`].
///
/// The defaults are Apex's (`apex.amp.frontend`), with ROCm's static scale of 1 where the 16-bit
/// type is `bf16`:
///
/// | option | `O0` | `O1<H>` | `O2<H>` | `O3<H>` |
/// |---|---|---|---|---|
/// | `cast_model_type` | `f32` | – | `H` | `H` |
/// | `patch_torch_functions` | false | true | false | false |
/// | `keep_batchnorm_fp32` | – | – | true | false |
/// | `master_weights` | – | – | true | false |
/// | `rounding` | – | – | – | nearest |
/// | `loss_scale`, `H = f16` | 1 | dynamic | dynamic | 1 |
/// | `loss_scale`, `H = bf16` | 1 | 1 | 1 | 1 |
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an opt level",
    label = "expected `O0`, `O1`, `O2` or `O3` (the letter O, then a digit), e.g. `O2` or `O2<bf16>`"
)]
pub trait OptLevel: sealed::OptLevel + Copy + Debug + Default + Send + Sync + 'static {
    /// `"O0"`, `"O1"`, `"O2"` or `"O3"`.
    const NAME: &'static str;
    /// One line on what the level does.
    const BRIEF: &'static str;
    /// The 16-bit type the level computes in, or `None` at `O0`.
    const LOW_PRECISION: Option<Kind>;
    /// The options in force when the builder overrides nothing.
    const DEFAULTS: Properties;
    /// The options the level refuses, by name: the run-time twin of the traits in
    /// [`option`](crate::option).
    const REFUSES: &'static [&'static str];
}

/// Plain FP32 training: the baseline for accuracy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct O0;

/// FP32 weights; each operation runs in the type that suits it.
///
/// Matrix products and convolutions run in `H`, reductions and transcendental functions in FP32
/// (see [`autocast`](crate::autocast)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct O1<H = f16>(PhantomData<H>);

/// 16-bit weights and activations, FP32 batch norm, FP32 master weights in the optimizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct O2<H = f16>(PhantomData<H>);

/// Everything in 16 bits, without master weights: the baseline for speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct O3<H = f16>(PhantomData<H>);

/// ROCm Apex's name for [`O1<bf16>`](O1).
pub type O4 = O1<bf16>;

/// ROCm Apex's name for [`O2<bf16>`](O2).
pub type O5 = O2<bf16>;

impl OptLevel for O0 {
    const NAME: &'static str = "O0";
    const BRIEF: &'static str = "plain FP32 training";
    const LOW_PRECISION: Option<Kind> = None;
    const DEFAULTS: Properties =
        Properties { cast_model_type: Some(Kind::Float), ..Properties::of(AnyLevel::O0) };
    const REFUSES: &'static [&'static str] = &[
        "patch_torch_functions",
        "keep_batchnorm_fp32",
        "keep_fp32",
        "master_weights",
        "rounding",
    ];
}

impl<H: LowPrecision> OptLevel for O1<H> {
    const NAME: &'static str = "O1";
    const BRIEF: &'static str = "FP32 weights, casts around single operations";
    const LOW_PRECISION: Option<Kind> = Some(H::KIND);
    const DEFAULTS: Properties = Properties {
        patch_torch_functions: true,
        loss_scale: H::DEFAULT_LOSS_SCALE,
        ..Properties::of(AnyLevel::O1.in_kind(H::KIND))
    };
    const REFUSES: &'static [&'static str] =
        &["keep_batchnorm_fp32", "keep_fp32", "master_weights", "rounding"];
}

impl<H: LowPrecision> OptLevel for O2<H> {
    const NAME: &'static str = "O2";
    const BRIEF: &'static str = "16-bit weights, FP32 batch norm and master weights";
    const LOW_PRECISION: Option<Kind> = Some(H::KIND);
    const DEFAULTS: Properties = Properties {
        cast_model_type: Some(H::KIND),
        keep_batchnorm_fp32: Some(true),
        master_weights: Some(true),
        loss_scale: H::DEFAULT_LOSS_SCALE,
        ..Properties::of(AnyLevel::O2.in_kind(H::KIND))
    };
    const REFUSES: &'static [&'static str] = &["patch_torch_functions", "rounding"];
}

impl<H: LowPrecision> OptLevel for O3<H> {
    const NAME: &'static str = "O3";
    const BRIEF: &'static str = "everything in 16 bits";
    const LOW_PRECISION: Option<Kind> = Some(H::KIND);
    const DEFAULTS: Properties = Properties {
        cast_model_type: Some(H::KIND),
        keep_batchnorm_fp32: Some(false),
        master_weights: Some(false),
        ..Properties::of(AnyLevel::O3.in_kind(H::KIND))
    };
    const REFUSES: &'static [&'static str] = match H::KIND {
        Kind::BFloat16 => &["patch_torch_functions"],
        _ => &["patch_torch_functions", "rounding"],
    };
}

mod sealed {
    use super::{LowPrecision, O0, O1, O2, O3};

    #[diagnostic::on_unimplemented(
        message = "the set of opt levels is closed: `OptLevel` cannot be implemented for `{Self}`",
        label = "use `O0`, `O1`, `O2` or `O3`"
    )]
    pub trait OptLevel {}
    impl OptLevel for O0 {}
    impl<H: LowPrecision> OptLevel for O1<H> {}
    impl<H: LowPrecision> OptLevel for O2<H> {}
    impl<H: LowPrecision> OptLevel for O3<H> {}
}

static_assertions::assert_eq_size!(O2<bf16>, ());
static_assertions::const_assert!(matches!(
    <O2<f16> as OptLevel>::DEFAULTS.loss_scale,
    LossScale::Dynamic(_)
));
static_assertions::const_assert!(matches!(
    <O2<bf16> as OptLevel>::DEFAULTS.loss_scale,
    LossScale::Static(_)
));
