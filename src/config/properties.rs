//! The options in force, as values.

use std::fmt;

use tch::Kind;

use super::AnyLevel;
use crate::{rounding::Rounding, scaler::LossScale};

/// The options in force: a level's defaults with the builder's overrides.
///
/// `Display` prints them as a table; `build` sends it to `tracing` at level INFO.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Properties {
    /// The level.
    pub opt_level: AnyLevel,
    /// Off means plain `tch`: no casts, no scaling, no checks.
    pub enabled: bool,
    /// The type that weights and inputs are cast to; `None` means that the model is not cast.
    pub cast_model_type: Option<Kind>,
    /// Whether single operations cast their arguments.
    pub patch_torch_functions: bool,
    /// Whether batch norm keeps FP32 weights and statistics; `None` where the model is not cast to
    /// 16 bits.
    pub keep_batchnorm_fp32: Option<bool>,
    /// Whether the optimizer keeps FP32 copies of 16-bit weights; `None` where there are none.
    pub master_weights: Option<bool>,
    /// How 16-bit weights without masters are rounded; [`Rounding::Nearest`] unless
    /// [`AmpBuilder::rounding`](crate::AmpBuilder::rounding) says otherwise.
    pub rounding: Rounding,
    /// The loss scale that each loss starts with.
    pub loss_scale: LossScale,
    /// The type of the model's outputs; `None` means FP32.
    pub cast_model_outputs: Option<Kind>,
}

impl Properties {
    /// What the levels have in common.
    pub(crate) const fn of(opt_level: AnyLevel) -> Self {
        Self {
            opt_level,
            enabled: true,
            cast_model_type: None,
            patch_torch_functions: false,
            keep_batchnorm_fp32: None,
            master_weights: None,
            rounding: Rounding::Nearest,
            loss_scale: LossScale::ONE,
            cast_model_outputs: None,
        }
    }

    /// The 16-bit type of the weights, if they are cast at all.
    pub(crate) fn weight_kind(&self) -> Option<Kind> {
        self.cast_model_type.filter(|kind| self.enabled && *kind != Kind::Float)
    }

    /// Whether 16-bit weights have FP32 masters.
    pub(crate) fn keeps_masters(&self) -> bool {
        self.weight_kind().is_some() && self.master_weights == Some(true)
    }

    /// The loss scale that counts.
    pub(crate) fn effective_loss_scale(&self) -> LossScale {
        if self.enabled { self.loss_scale } else { LossScale::ONE }
    }

    /// Whether a step is plain `tch`: no scaling and no check of the gradients.
    pub(crate) fn plain_step(&self) -> bool {
        !self.enabled || (self.opt_level == AnyLevel::O0 && self.loss_scale == LossScale::ONE)
    }

    /// The options by name, as they are in force.
    pub(crate) fn table(&self) -> [(&'static str, String); 9] {
        let kind = |kind: Option<Kind>| kind.map_or("–", kind_name).to_owned();
        let flag = |flag: Option<bool>| flag.map_or("–".to_owned(), |on| on.to_string());
        let rounds = self.weight_kind().is_some() && !self.keeps_masters();
        let rounding = if rounds { self.rounding.to_string() } else { "–".to_owned() };
        [
            ("opt_level", self.opt_level.to_string()),
            ("enabled", self.enabled.to_string()),
            ("cast_model_type", kind(self.cast_model_type)),
            ("patch_torch_functions", self.patch_torch_functions.to_string()),
            ("keep_batchnorm_fp32", flag(self.keep_batchnorm_fp32)),
            ("master_weights", flag(self.master_weights)),
            ("rounding", rounding),
            ("loss_scale", self.loss_scale.to_string()),
            ("cast_model_outputs", kind(Some(self.cast_model_outputs.unwrap_or(Kind::Float)))),
        ]
    }
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.table();
        write!(f, "{:<22}: {}", first.0, first.1)?;
        rest.iter().try_for_each(|(name, value)| write!(f, "\n{name:<22}: {value}"))
    }
}

/// The name of a floating-point type in messages and config files.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Float => "f32",
        Kind::Half => "f16",
        Kind::BFloat16 => "bf16",
        Kind::Double => "f64",
        _ => "another type",
    }
}
