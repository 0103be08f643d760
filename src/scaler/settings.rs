//! The setting of a loss scale, and a scale that never changes.
//!
//! `min_loss_scale` and `max_loss_scale` exist only on [`Dynamic`], so a static scale with limits
//! cannot be written.

use std::num::NonZeroU32;

use super::{Dynamic, ScaleError};
use crate::option::LimitsOfDynamic;

/// A loss scale that never changes.
///
/// Steps with non-finite gradients are skipped all the same (Apex applies them).
///
/// ```
/// use tch_amp::Static;
/// const SCALE: Static = Static::new(128.0); // a bad value does not compile
/// assert_eq!(SCALE.scale(), 128.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Static {
    scale: f64,
    skip_limit: Option<NonZeroU32>,
}

impl Static {
    /// Makes a static scale.
    ///
    /// # Panics
    ///
    /// When `scale` is not a finite, positive, normal FP32 number; in a `const` that is a compile
    /// error. [`TryFrom`] is the form for values known at run time.
    #[track_caller]
    pub const fn new(scale: f64) -> Self {
        assert!(is_scale(scale), "a static loss scale must be finite and greater than zero");
        Self { scale: scale as f32 as f64, skip_limit: None }
    }

    /// Makes the `limit`-th skipped step in a row an error, [`StepError::SkipLimit`].
    ///
    /// By default training goes on skipping.
    ///
    /// [`StepError::SkipLimit`]: crate::StepError::SkipLimit
    pub const fn skip_limit(mut self, limit: NonZeroU32) -> Self {
        self.skip_limit = Some(limit);
        self
    }

    /// The scale.
    pub const fn scale(self) -> f64 {
        self.scale
    }

    /// A setting of [`Dynamic`] only.
    #[doc(hidden)]
    pub fn min_loss_scale<T: LimitsOfDynamic>(self, _: T) -> Self {
        self
    }

    /// A setting of [`Dynamic`] only.
    #[doc(hidden)]
    pub fn max_loss_scale<T: LimitsOfDynamic>(self, _: T) -> Self {
        self
    }
}

impl TryFrom<f64> for Static {
    type Error = ScaleError;

    fn try_from(scale: f64) -> Result<Self, ScaleError> {
        match is_scale(scale) {
            true => Ok(Self::new(scale)),
            false => Err(ScaleError::NotAScale { setting: "loss_scale", value: scale }),
        }
    }
}

/// The setting of a loss scale: [`Static`] or [`Dynamic`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossScale {
    /// A scale that never changes.
    Static(Static),
    /// A scale that follows the gradients.
    Dynamic(Dynamic),
}

impl LossScale {
    /// A static scale of 1: no scaling.
    pub const ONE: Self = Self::Static(Static::new(1.0));
    /// A dynamic scale with the default settings: Apex's `"dynamic"`.
    pub const DYNAMIC: Self = Self::Dynamic(Dynamic::new());

    pub(crate) const fn skip_limit(self) -> Option<NonZeroU32> {
        match self {
            Self::Static(s) => s.skip_limit,
            Self::Dynamic(d) => d.skip_limit,
        }
    }
}

impl From<Static> for LossScale {
    fn from(scale: Static) -> Self {
        Self::Static(scale)
    }
}

impl From<Dynamic> for LossScale {
    fn from(scale: Dynamic) -> Self {
        Self::Dynamic(scale)
    }
}

impl std::fmt::Display for LossScale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Static(s) => write!(f, "{}", s.scale),
            Self::Dynamic(_) => f.write_str("dynamic"),
        }
    }
}

/// The scale lives in FP32 on the device and is divided by, so it stays in the normal range.
pub(super) const fn is_scale(value: f64) -> bool {
    value >= f32::MIN_POSITIVE as f64 && value <= f32::MAX as f64
}
