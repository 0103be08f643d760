//! `Amp::<L>::builder()` and what it builds.

mod build;
mod division;
mod error;
mod listing;
mod models;
mod optimizers;
pub mod state;

use std::marker::PhantomData;

use typenum::U1;

pub use error::BuildError;
pub(crate) use listing::Listed;
pub use models::Models;
pub use optimizers::Optimizers;

use crate::{
    config::{AmpConfig, OptionError, Properties},
    level::OptLevel,
    loss::LossCount,
    option::{
        self, AllowsCastModelType, AllowsKeepBatchnormFp32, AllowsKeepFp32, AllowsMasterWeights,
        AllowsPatchTorchFunctions, AllowsRounding, LimitsOfDynamic, LossScaleSetting, NotWith,
        OutputType, Unset,
    },
    rounding::Rounding,
};
use state::{
    Fresh, FromConfig, SetCastModelOutputs, SetCastModelType, SetEnabled, SetKeepBatchnormFp32,
    SetKeepFp32, SetLossScale, SetMasterWeights, SetNumLosses, SetPatchTorchFunctions, SetRounding,
    State,
};

/// The entry point: `Amp::<O2>::builder()`.
#[derive(Debug)]
pub struct Amp<L>(PhantomData<L>);

impl<L> Amp<L> {
    /// Starts from the defaults of level `L`.
    pub fn builder() -> AmpBuilder<L>
    where
        L: OptLevel,
    {
        AmpBuilder { properties: L::DEFAULTS, keep_fp32: Vec::new(), _types: PhantomData }
    }

    /// Starts from options read at run time; the builder takes no further overrides but
    /// `num_losses`.
    ///
    /// # Errors
    ///
    /// When the level refuses an option, a value is not legal, or the config is for another level.
    pub fn from_config(config: &AmpConfig) -> Result<AmpBuilder<L, FromConfig>, OptionError>
    where
        L: OptLevel,
    {
        let properties = config.properties_at::<L>()?;
        Ok(AmpBuilder { properties, keep_fp32: config.keep_fp32.clone(), _types: PhantomData })
    }
}

/// Collects overrides of the defaults of level `L`, in any order, each at most once.
///
/// `S` remembers which options are set, `N` counts the losses with a scale of their own; neither
/// needs to be written out. Which level takes which option:
///
/// | option | `O0` | `O1` | `O2` | `O3` |
/// |---|---|---|---|---|
/// | [`enabled`](Self::enabled) | ✓ | ✓ | ✓ | ✓ |
/// | [`cast_model_type::<T>`](Self::cast_model_type) | `f32` | `f32` | `H` | `H` |
/// | [`patch_torch_functions`](Self::patch_torch_functions) | – | ✓ | – | – |
/// | [`keep_batchnorm_fp32`](Self::keep_batchnorm_fp32) | – | – | ✓ | ✓ |
/// | [`keep_fp32`](Self::keep_fp32) | – | – | ✓ | ✓ |
/// | [`master_weights`](Self::master_weights) | – | – | ✓ | ✓ |
/// | [`rounding`](Self::rounding) | – | – | – | `bf16` |
/// | [`loss_scale`](Self::loss_scale) | ✓ | ✓ | ✓ | ✓ |
/// | [`num_losses::<N>`](Self::num_losses) | ✓ | ✓ | ✓ | ✓ |
/// | [`cast_model_outputs::<T>`](Self::cast_model_outputs) | ✓ | ✓ | ✓ | ✓ |
///
/// Apex accepts `keep_batchnorm_fp32` and `master_weights` at `O0`, where they do nothing; here
/// they do not compile.
#[must_use = "a builder does nothing until `build` is called"]
#[derive(Debug)]
pub struct AmpBuilder<L, S = Fresh, N = U1> {
    properties: Properties,
    keep_fp32: Vec<String>,
    _types: PhantomData<(L, S, N)>,
}

impl<L: OptLevel, S: State, N: LossCount> AmpBuilder<L, S, N> {
    /// Turns mixed precision off when `on` is false: the built model and optimizer have the same
    /// types, and run as plain `tch`. Default: true.
    pub fn enabled(self, on: bool) -> AmpBuilder<L, SetEnabled<S>, N>
    where
        S::Enabled: Unset<option::enabled>,
    {
        self.with(|p| p.enabled = on)
    }

    /// States the type of the weights; it must agree with the level, and changes nothing.
    pub fn cast_model_type<T>(self) -> AmpBuilder<L, SetCastModelType<S>, N>
    where
        L: AllowsCastModelType<T>,
        S::CastModelType: Unset<option::cast_model_type>,
    {
        self.with(|_| ())
    }

    /// Casts around single operations. Default at `O1`: true.
    ///
    /// With false, `O1` is FP32 training with the level's loss scale.
    pub fn patch_torch_functions(self, on: bool) -> AmpBuilder<L, SetPatchTorchFunctions<S>, N>
    where
        L: AllowsPatchTorchFunctions,
        S::PatchTorchFunctions: Unset<option::patch_torch_functions>,
    {
        self.with(|p| p.patch_torch_functions = on)
    }

    /// Keeps the weights and running statistics of batch norm in FP32 while the rest of the model
    /// is cast. Default: true at `O2`, false at `O3`.
    pub fn keep_batchnorm_fp32(self, keep: bool) -> AmpBuilder<L, SetKeepBatchnormFp32<S>, N>
    where
        L: AllowsKeepBatchnormFp32,
        S::KeepBatchnormFp32: Unset<option::keep_batchnorm_fp32>,
    {
        self.with(|p| p.keep_batchnorm_fp32 = Some(keep))
    }

    /// Keeps the variables under these paths in FP32 while the rest of the model is cast: `"head"`
    /// stands for `head.weight` and `head.norm.bias`, not for `header.weight`. Default: none.
    ///
    /// For norms other than batch norm, which take 16-bit inputs with FP32 weights; a linear layer
    /// or a convolution that is kept needs FP32 inputs, which the model's own code has to cast.
    pub fn keep_fp32<P: Into<String>>(
        self,
        paths: impl IntoIterator<Item = P>,
    ) -> AmpBuilder<L, SetKeepFp32<S>, N>
    where
        L: AllowsKeepFp32,
        S::KeepFp32: Unset<option::keep_fp32>,
    {
        let keep_fp32 = paths.into_iter().map(Into::into).collect();
        AmpBuilder { keep_fp32, ..self.with(|_| ()) }
    }

    /// Keeps FP32 copies of the 16-bit weights, which the optimizer updates. Default: true at
    /// `O2`, false at `O3`.
    pub fn master_weights(self, on: bool) -> AmpBuilder<L, SetMasterWeights<S>, N>
    where
        L: AllowsMasterWeights,
        S::MasterWeights: Unset<option::master_weights>,
        S::Rounding: NotWith<option::master_weights>,
    {
        self.with(|p| p.master_weights = Some(on))
    }

    /// Sets how new values are rounded to the weights, which have no masters. Default:
    /// [`Rounding::Nearest`].
    ///
    /// `bf16` weights that are rounded to nearest soon stop moving; [`Rounding::Stochastic`] lets
    /// them go on, without the four bytes for each weight that a master takes.
    pub fn rounding(self, rounding: Rounding) -> AmpBuilder<L, SetRounding<S>, N>
    where
        L: AllowsRounding,
        S::Rounding: Unset<option::rounding>,
        S::MasterWeights: NotWith<option::rounding>,
    {
        self.with(|p| p.rounding = rounding)
    }

    /// Sets the loss scale: [`Static`](crate::Static) or [`Dynamic`](crate::Dynamic).
    ///
    /// Default: dynamic at `O1` and `O2` with `f16`, else a static 1. Each of
    /// [`num_losses`](Self::num_losses) losses starts with a scale of its own.
    pub fn loss_scale(self, scale: impl LossScaleSetting) -> AmpBuilder<L, SetLossScale<S>, N>
    where
        S::LossScale: Unset<option::loss_scale>,
    {
        self.with(|p| p.loss_scale = scale.into())
    }

    /// Gives `N2` losses a scale each; they are told apart by typenum ids from `U0` up. Default:
    /// `U1`.
    pub fn num_losses<N2: LossCount>(self) -> AmpBuilder<L, SetNumLosses<S>, N2>
    where
        S::NumLosses: Unset<option::num_losses>,
    {
        self.with(|_| ())
    }

    /// Casts the model's floating-point outputs to `T`: `f32`, `f16` or `bf16`. Default: `f32` at
    /// every level.
    pub fn cast_model_outputs<T: OutputType>(self) -> AmpBuilder<L, SetCastModelOutputs<S>, N>
    where
        S::CastModelOutputs: Unset<option::cast_model_outputs>,
    {
        self.with(|p| p.cast_model_outputs = Some(T::KIND))
    }

    /// The options as they stand.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// A setting of [`Dynamic`](crate::Dynamic).
    #[doc(hidden)]
    pub fn min_loss_scale<T: LimitsOfDynamic>(self, _: T) -> Self {
        self
    }

    /// A setting of [`Dynamic`](crate::Dynamic).
    #[doc(hidden)]
    pub fn max_loss_scale<T: LimitsOfDynamic>(self, _: T) -> Self {
        self
    }

    fn with<S2, N2>(self, change: impl FnOnce(&mut Properties)) -> AmpBuilder<L, S2, N2> {
        let Self { mut properties, keep_fp32, .. } = self;
        change(&mut properties);
        AmpBuilder { properties, keep_fp32, _types: PhantomData }
    }
}
