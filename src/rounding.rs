//! How new values are rounded to 16-bit weights.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How an optimizer rounds new values to 16-bit weights that have no FP32 master.
///
/// In a config: `"nearest"`, or `{ stochastic = { seed = 1 } }` in TOML.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Rounding {
    /// To the nearest value. An update of less than half the distance between two values is lost: a
    /// `bf16` weight of 1 ignores every update below 0.002.
    #[default]
    Nearest,
    /// Up or down at random, the nearer value more often, so that the mean is exact and small
    /// updates add up (Gupta et al., ICML 2015).
    ///
    /// The same seed gives the same training, bit for bit: the random bits come from
    /// Philox4x32-7 (Salmon et al., SC 2011) and depend on the seed, the parameter's name, the
    /// element and the number of updates so far, and on nothing else.
    Stochastic {
        /// What tells one sequence of random bits from another.
        seed: u64,
    },
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nearest => f.write_str("nearest"),
            Self::Stochastic { seed } => write!(f, "stochastic, seed {seed}"),
        }
    }
}
