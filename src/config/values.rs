//! Values of options as they are written in files and on command lines.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use tch::Kind;

use super::{OptionError, properties::kind_name};

/// A floating-point type by its name in Rust: `"f32"`, `"f16"` or `"bf16"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// `f32`
    F32,
    /// `half::f16`
    F16,
    /// `half::bf16`
    Bf16,
}

impl DType {
    /// The libtorch scalar type.
    pub const fn kind(self) -> Kind {
        match self {
            Self::F32 => Kind::Float,
            Self::F16 => Kind::Half,
            Self::Bf16 => Kind::BFloat16,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(kind_name(self.kind()))
    }
}

impl FromStr for DType {
    type Err = OptionError;

    fn from_str(name: &str) -> Result<Self, OptionError> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            _ => Err(OptionError::UnknownDType { name: name.to_owned() }),
        }
    }
}

/// A loss scale in a config: `"dynamic"`, or a number, also as a string.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "NumberOrText", into = "NumberOrText")]
pub enum LossScaleConfig {
    /// [`Dynamic`](crate::Dynamic) with its defaults.
    Dynamic,
    /// [`Static`](crate::Static) with this scale.
    Static(f64),
}

impl FromStr for LossScaleConfig {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        match text {
            "dynamic" => Ok(Self::Dynamic),
            _ => text
                .parse()
                .map(Self::Static)
                .map_err(|_| OptionError::UnknownLossScale { text: text.to_owned() }),
        }
    }
}

/// How a loss scale is written in a file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}

impl TryFrom<NumberOrText> for LossScaleConfig {
    type Error = OptionError;

    fn try_from(value: NumberOrText) -> Result<Self, OptionError> {
        match value {
            NumberOrText::Number(scale) => Ok(Self::Static(scale)),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl From<LossScaleConfig> for NumberOrText {
    fn from(scale: LossScaleConfig) -> Self {
        match scale {
            LossScaleConfig::Dynamic => Self::Text("dynamic".to_owned()),
            LossScaleConfig::Static(scale) => Self::Number(scale),
        }
    }
}
