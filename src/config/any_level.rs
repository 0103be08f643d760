//! A level chosen at run time, and the way from it to the typed API.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tch::Kind;

use super::OptionError;
use crate::{level::OptLevel, with_level};

/// An opt level chosen at run time: from a command line, a config file, a checkpoint.
///
/// It reads and prints as `"O0"`, `"O1"`, `"O1<bf16>"`, …; without a type it means `f16`, as the
/// types [`O1`](crate::O1), [`O2`](crate::O2) and [`O3`](crate::O3) do.
///
/// ```
/// use tch_amp::{AnyLevel, OptLevel, with_level};
/// let level: AnyLevel = "O2<bf16>".parse()?;
/// assert_eq!(with_level!(level, L => L::BRIEF), "16-bit weights, FP32 batch norm and master weights");
/// # Ok::<(), tch_amp::OptionError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AnyLevel {
    /// [`O0`](crate::O0)
    O0,
    /// [`O1<f16>`](crate::O1), the default of Apex's `initialize`.
    #[default]
    O1,
    /// [`O1<bf16>`](crate::O1)
    O1Bf16,
    /// [`O2<f16>`](crate::O2)
    O2,
    /// [`O2<bf16>`](crate::O2)
    O2Bf16,
    /// [`O3<f16>`](crate::O3)
    O3,
    /// [`O3<bf16>`](crate::O3)
    O3Bf16,
}

impl AnyLevel {
    /// Every level.
    pub const ALL: [Self; 7] =
        [Self::O0, Self::O1, Self::O1Bf16, Self::O2, Self::O2Bf16, Self::O3, Self::O3Bf16];

    /// Calls `visitor` with the level as a type.
    pub fn visit<V: LevelVisitor>(self, visitor: V) -> V::Output {
        with_level!(self, L => visitor.visit::<L>())
    }

    /// The name of the level with its type, as Rust writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::O0 => "O0",
            Self::O1 => "O1",
            Self::O1Bf16 => "O1<bf16>",
            Self::O2 => "O2",
            Self::O2Bf16 => "O2<bf16>",
            Self::O3 => "O3",
            Self::O3Bf16 => "O3<bf16>",
        }
    }

    /// The 16-bit type the level computes in, or `None` at `O0`.
    pub fn low_precision(self) -> Option<Kind> {
        with_level!(self, L => L::LOW_PRECISION)
    }

    /// The same level computing in another 16-bit type; `O0` has none and stays.
    pub(crate) const fn in_kind(self, kind: Kind) -> Self {
        let bf16 = matches!(kind, Kind::BFloat16);
        match self {
            Self::O0 => Self::O0,
            Self::O1 | Self::O1Bf16 if bf16 => Self::O1Bf16,
            Self::O2 | Self::O2Bf16 if bf16 => Self::O2Bf16,
            Self::O3 | Self::O3Bf16 if bf16 => Self::O3Bf16,
            Self::O1 | Self::O1Bf16 => Self::O1,
            Self::O2 | Self::O2Bf16 => Self::O2,
            Self::O3 | Self::O3Bf16 => Self::O3,
        }
    }
}

impl fmt::Display for AnyLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for AnyLevel {
    type Err = OptionError;

    fn from_str(name: &str) -> Result<Self, OptionError> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == name)
            .ok_or_else(|| OptionError::UnknownLevel { name: name.to_owned() })
    }
}

impl Serialize for AnyLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for AnyLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Code that is generic over the level, for [`AnyLevel::visit`].
///
/// [`with_level!`](crate::with_level) is shorter where a closure would do.
pub trait LevelVisitor {
    /// What the code returns.
    type Output;

    /// Runs the code at level `L`.
    fn visit<L: OptLevel>(self) -> Self::Output;
}

/// `with_level!(level, L => expression)`: evaluates the expression with `L` naming the level.
///
/// The expression is compiled once for each level.
///
/// ```
/// use tch_amp::{AnyLevel, OptLevel, with_level};
/// let name = with_level!(AnyLevel::O3, L => L::NAME);
/// assert_eq!(name, "O3");
/// ```
#[macro_export]
macro_rules! with_level {
    ($level:expr, $L:ident => $body:expr) => {{
        let level: $crate::AnyLevel = $level;
        match level {
            $crate::AnyLevel::O0 => {
                type $L = $crate::O0;
                $body
            }
            $crate::AnyLevel::O1 => {
                type $L = $crate::O1;
                $body
            }
            $crate::AnyLevel::O1Bf16 => {
                type $L = $crate::O4;
                $body
            }
            $crate::AnyLevel::O2 => {
                type $L = $crate::O2;
                $body
            }
            $crate::AnyLevel::O2Bf16 => {
                type $L = $crate::O5;
                $body
            }
            $crate::AnyLevel::O3 => {
                type $L = $crate::O3;
                $body
            }
            $crate::AnyLevel::O3Bf16 => {
                type $L = $crate::O3<$crate::bf16>;
                $body
            }
        }
    }};
}
