//! Why a config is refused.

use super::{AnyLevel, DType};
use crate::scaler::ScaleError;

/// An option that the level refuses, or a value that no level takes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// The level does not take the option.
    #[error("`{option}` cannot be set at opt level `{level}`: {}", advice(option, *level))]
    Refused {
        /// The option.
        option: &'static str,
        /// The level.
        level: AnyLevel,
    },
    /// The level decides the type of the weights.
    #[error(
        "`cast_model_type` cannot be `{dtype}` at opt level `{level}`: the level decides the type \
         of the weights: remove this option, or choose another level"
    )]
    CastModelType {
        /// The type asked for.
        dtype: DType,
        /// The level.
        level: AnyLevel,
    },
    /// The level cannot compute in the type.
    #[error(
        "`dtype` cannot be `{dtype}` at opt level `{level}`: `O1`, `O2` and `O3` compute in `f16` \
         or `bf16`, `O0` in FP32 without a dtype"
    )]
    DType {
        /// The type asked for.
        dtype: DType,
        /// The level.
        level: AnyLevel,
    },
    /// Two options of which one stands in for the other.
    #[error("`master_weights` and `rounding` exclude each other: remove one")]
    RoundingAndMasters,
    /// Limits for a static scale.
    #[error(
        "`min_loss_scale` and `max_loss_scale` are settings of a dynamic loss scale: set \
         `loss_scale` to \"dynamic\""
    )]
    LimitsOfDynamic,
    /// A setting of a dynamic scale for a static one.
    #[error("`{option}` is a setting of a dynamic loss scale: set `loss_scale` to \"dynamic\"")]
    OfDynamic {
        /// The option.
        option: &'static str,
    },
    /// Two rules for the same thing.
    #[error("`hysteresis` and `consecutive_hysteresis` exclude each other: remove one of the two")]
    TwoHystereses,
    /// A value that the setting of a loss scale cannot have.
    #[error(transparent)]
    LossScale(#[from] ScaleError),
    /// Not the name of a level.
    #[error(
        "unknown opt level {name:?}: expected \"O0\", \"O1\", \"O2\" or \"O3\" (the letter O, not \
         the number zero), for bfloat16 \"O1<bf16>\", \"O2<bf16>\" or \"O3<bf16>\""
    )]
    UnknownLevel {
        /// What was given.
        name: String,
    },
    /// Not the name of a type.
    #[error("unknown dtype {name:?}: expected \"f16\" or \"bf16\", for outputs also \"f32\"")]
    UnknownDType {
        /// What was given.
        name: String,
    },
    /// Neither `"dynamic"` nor a number.
    #[error("unknown loss scale {text:?}: expected \"dynamic\" or a number")]
    UnknownLossScale {
        /// What was given.
        text: String,
    },
    /// The config names another level than the one it is applied to.
    #[error("the config is for opt level `{config}`, the builder for `{builder}`")]
    OtherLevel {
        /// The config's level.
        config: AnyLevel,
        /// The builder's level.
        builder: AnyLevel,
    },
}

/// The labels of the traits in [`option`](crate::option), word for word.
fn advice(option: &str, level: AnyLevel) -> String {
    match option {
        "keep_batchnorm_fp32" => format!(
            "`{level}` does not cast the model, so batch norm keeps its FP32 weights: remove this \
             option"
        ),
        "keep_fp32" => format!(
            "`{level}` does not cast the model, so all of it stays in FP32: remove this option"
        ),
        "master_weights" => format!(
            "`{level}` leaves the weights in FP32, so it has no master weights: remove this \
             option, or choose `O2`"
        ),
        "rounding" => "only `O3<bf16>` rounds new values to weights without masters: remove this \
                       option, or choose `O3<bf16>`"
            .to_owned(),
        _ => "only `O1` casts around single operations: remove this option, or choose `O1`"
            .to_owned(),
    }
}
