//! Settings that cannot be.

/// A loss-scale setting with a value that no scale can have.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScaleError {
    /// Zero, negative, NaN, infinite, or outside the normal FP32 range.
    #[error("`{setting}` is {value}: it must be finite and greater than zero")]
    NotAScale {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
    },
    /// A factor or a count out of range.
    #[error("`{setting}` is {value}: it must {must}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// What it must do: "be greater than 1".
        must: &'static str,
    },
    /// The limits exclude each other.
    #[error("`min_loss_scale` ({min}) is above `max_loss_scale` ({max})")]
    MinAboveMax {
        /// The floor.
        min: f64,
        /// The ceiling.
        max: f64,
    },
}
