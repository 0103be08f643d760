//! Options read at run time, under the rules that the builder enforces at compile time.

use serde::{Deserialize, Serialize};
use tch::Kind;

use super::{AnyLevel, DType, LossScaleConfig, OptionError, Properties};
use crate::{dtype::LowPrecision, level::OptLevel, rounding::Rounding, with_level};

/// A level and overrides of its options, from a config file or a command line.
///
/// An option that is absent keeps the level's default. What the builder's types reject, a config
/// is refused for, in the same words; `default` is level `O1` without overrides.
///
/// ```
/// use tch_amp::{Amp, AmpConfig, OptLevel, with_level};
/// let config: AmpConfig = toml::from_str(
///     r#"
///     opt_level = "O2"
///     dtype = "bf16"
///     keep_batchnorm_fp32 = true
///     loss_scale = "dynamic"
///     min_loss_scale = 0.5
///     "#,
/// )?;
/// with_level!(config.level()?, L => {
///     let builder = Amp::<L>::from_config(&config)?;
///     println!("{}", builder.properties());
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AmpConfig {
    /// The level, `"O0"` to `"O3"` or with its type, `"O2<bf16>"`.
    pub opt_level: AnyLevel,
    /// The 16-bit type: another way to write `"O2<bf16>"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    /// See [`AmpBuilder::enabled`](crate::builder::AmpBuilder::enabled).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// See [`AmpBuilder::cast_model_type`](crate::builder::AmpBuilder::cast_model_type).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cast_model_type: Option<DType>,
    /// See [`AmpBuilder::patch_torch_functions`](crate::builder::AmpBuilder::patch_torch_functions).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_torch_functions: Option<bool>,
    /// See [`AmpBuilder::keep_batchnorm_fp32`](crate::builder::AmpBuilder::keep_batchnorm_fp32).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_batchnorm_fp32: Option<bool>,
    /// See [`AmpBuilder::keep_fp32`](crate::builder::AmpBuilder::keep_fp32).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keep_fp32: Vec<String>,
    /// See [`AmpBuilder::master_weights`](crate::builder::AmpBuilder::master_weights).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_weights: Option<bool>,
    /// See [`AmpBuilder::rounding`](crate::builder::AmpBuilder::rounding).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounding: Option<Rounding>,
    /// See [`AmpBuilder::loss_scale`](crate::builder::AmpBuilder::loss_scale).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScaleConfig>,
    /// See [`Dynamic::init_scale`](crate::Dynamic::init_scale).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_scale: Option<f64>,
    /// See [`Dynamic::growth_factor`](crate::Dynamic::growth_factor).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_factor: Option<f64>,
    /// See [`Dynamic::backoff_factor`](crate::Dynamic::backoff_factor).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_factor: Option<f64>,
    /// See [`Dynamic::growth_interval`](crate::Dynamic::growth_interval).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_interval: Option<u32>,
    /// See [`Dynamic::hysteresis`](crate::Dynamic::hysteresis).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hysteresis: Option<u32>,
    /// See [`Dynamic::consecutive_hysteresis`](crate::Dynamic::consecutive_hysteresis).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_hysteresis: Option<u32>,
    /// See [`Dynamic::skip_limit`](crate::Dynamic::skip_limit); of a static scale too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_limit: Option<u32>,
    /// See [`Dynamic::min_loss_scale`](crate::Dynamic::min_loss_scale).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_loss_scale: Option<f64>,
    /// See [`Dynamic::max_loss_scale`](crate::Dynamic::max_loss_scale).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_loss_scale: Option<f64>,
    /// See [`AmpBuilder::cast_model_outputs`](crate::builder::AmpBuilder::cast_model_outputs).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cast_model_outputs: Option<DType>,
}

impl AmpConfig {
    /// The level with `dtype` taken into account.
    ///
    /// # Errors
    ///
    /// When `dtype` is not a 16-bit type, contradicts the level's own, or is given at `O0`.
    pub fn level(&self) -> Result<AnyLevel, OptionError> {
        let Some(dtype) = self.dtype else { return Ok(self.opt_level) };
        let kind = dtype.kind();
        let level = self.opt_level;
        let contradicts = level.low_precision() == Some(half::bf16::KIND) && kind == Kind::Half;
        match kind == Kind::Float || level == AnyLevel::O0 || contradicts {
            true => Err(OptionError::DType { dtype, level }),
            false => Ok(level.in_kind(kind)),
        }
    }

    /// Applies the overrides to the defaults of the level.
    ///
    /// # Errors
    ///
    /// See [`OptionError`].
    pub fn properties(&self) -> Result<Properties, OptionError> {
        let level = self.level()?;
        let (defaults, refuses) = with_level!(level, L => (L::DEFAULTS, L::REFUSES));
        let refused = |given: bool, option: &'static str| match given && refuses.contains(&option) {
            true => Err(OptionError::Refused { option, level }),
            false => Ok(()),
        };
        refused(self.patch_torch_functions.is_some(), "patch_torch_functions")?;
        refused(self.keep_batchnorm_fp32.is_some(), "keep_batchnorm_fp32")?;
        refused(!self.keep_fp32.is_empty(), "keep_fp32")?;
        refused(self.master_weights.is_some(), "master_weights")?;
        refused(self.rounding.is_some(), "rounding")?;
        if self.master_weights.is_some() && self.rounding.is_some() {
            return Err(OptionError::RoundingAndMasters);
        }
        if let Some(dtype) = self.cast_model_type {
            let weights = defaults.cast_model_type.unwrap_or(Kind::Float);
            if dtype.kind() != weights {
                return Err(OptionError::CastModelType { dtype, level });
            }
        }
        Ok(Properties {
            enabled: self.enabled.unwrap_or(defaults.enabled),
            patch_torch_functions: self
                .patch_torch_functions
                .unwrap_or(defaults.patch_torch_functions),
            keep_batchnorm_fp32: self.keep_batchnorm_fp32.or(defaults.keep_batchnorm_fp32),
            master_weights: self.master_weights.or(defaults.master_weights),
            rounding: self.rounding.unwrap_or(defaults.rounding),
            loss_scale: self.resolve_loss_scale(defaults.loss_scale)?,
            cast_model_outputs: self.cast_model_outputs.map(DType::kind),
            ..defaults
        })
    }

    /// The resolved options, checked to be for level `L`.
    pub(crate) fn properties_at<L: OptLevel>(&self) -> Result<Properties, OptionError> {
        let properties = self.properties()?;
        match (properties.opt_level, L::DEFAULTS.opt_level) {
            (config, builder) if config != builder => {
                Err(OptionError::OtherLevel { config, builder })
            }
            _ => Ok(properties),
        }
    }
}
