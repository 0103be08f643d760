//! Settings of a loss scale.
//!
//! `min_loss_scale` and `max_loss_scale` exist only on [`Dynamic`], so a static scale with limits
//! cannot be written.

use std::num::NonZeroU32;

use super::ScaleError;
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

/// A loss scale that backs off on overflow and grows after a run of good steps.
///
/// Every setter is a `const fn` that panics on a bad value, so that in a `const` a bad value is a
/// compile error. Values known at run time go through [`AmpConfig`](crate::AmpConfig).
///
/// | setting | default | source |
/// |---|---|---|
/// | `init_scale` | 2^16, clamped into [min, max] | Apex |
/// | `growth_factor`, `backoff_factor` | 2, 1/2 | Apex, torch |
/// | `growth_interval` | 2000 good steps | Apex, torch |
/// | `min_loss_scale`, `max_loss_scale` | 2^-24, 2^24 | Apex has no floor: its scale can reach 0 |
/// | `hysteresis` | 1: every overflow backs off | Apex's `update_scale_hysteresis` |
/// | `skip_limit` | none | |
///
/// ```
/// use tch_amp::Dynamic;
/// const SCALE: Dynamic = Dynamic::new().init_scale(1024.0).min_loss_scale(0.5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dynamic {
    pub(super) init_scale: f64,
    pub(super) growth_factor: f64,
    pub(super) backoff_factor: f64,
    pub(super) growth_interval: u32,
    pub(super) hysteresis: u32,
    pub(super) min: f64,
    pub(super) max: f64,
    skip_limit: Option<NonZeroU32>,
}

impl Dynamic {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            init_scale: 65_536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            hysteresis: 1,
            min: 1.0 / 16_777_216.0,
            max: 16_777_216.0,
            skip_limit: None,
        }
    }

    /// Sets the first scale; it is clamped into [min, max].
    ///
    /// # Panics
    ///
    /// When `scale` is not a finite, positive, normal FP32 number.
    #[track_caller]
    pub const fn init_scale(mut self, scale: f64) -> Self {
        assert!(is_scale(scale), "init_scale must be finite and greater than zero");
        self.init_scale = scale as f32 as f64;
        self
    }

    /// Sets the factor that the scale grows by.
    ///
    /// # Panics
    ///
    /// Unless `factor` is finite and greater than 1.
    #[track_caller]
    pub const fn growth_factor(mut self, factor: f64) -> Self {
        assert!(factor > 1.0 && factor.is_finite(), "growth_factor must be greater than 1");
        self.growth_factor = factor;
        self
    }

    /// Sets the factor that the scale backs off by.
    ///
    /// # Panics
    ///
    /// Unless `factor` lies between 0 and 1.
    #[track_caller]
    pub const fn backoff_factor(mut self, factor: f64) -> Self {
        assert!(factor > 0.0 && factor < 1.0, "backoff_factor must lie between 0 and 1");
        self.backoff_factor = factor;
        self
    }

    /// Sets how many good steps in a row make the scale grow.
    ///
    /// # Panics
    ///
    /// When `steps` is 0.
    #[track_caller]
    pub const fn growth_interval(mut self, steps: u32) -> Self {
        assert!(steps > 0, "growth_interval must be at least 1");
        self.growth_interval = steps;
        self
    }

    /// Sets how many overflows in a row it takes for the scale to back off.
    ///
    /// A good step starts the count anew (the rule of Apex's `update_scale_hysteresis`). Each
    /// overflow skips its step whether the scale backs off or not.
    ///
    /// # Panics
    ///
    /// When `overflows` is 0.
    #[track_caller]
    pub const fn hysteresis(mut self, overflows: u32) -> Self {
        assert!(overflows > 0, "hysteresis must be at least 1");
        self.hysteresis = overflows;
        self
    }

    /// Sets the floor of the scale.
    ///
    /// # Panics
    ///
    /// Unless `min` is a positive, normal FP32 number and at most the ceiling. To raise both, raise
    /// the ceiling first.
    #[track_caller]
    pub const fn min_loss_scale(mut self, min: f64) -> Self {
        assert!(
            is_scale(min) && min <= self.max,
            "min_loss_scale must be greater than zero and at most max_loss_scale"
        );
        self.min = min as f32 as f64;
        self
    }

    /// Sets the ceiling of the scale.
    ///
    /// # Panics
    ///
    /// Unless `max` is a finite FP32 number and at least the floor. To lower both, lower the floor
    /// first.
    #[track_caller]
    pub const fn max_loss_scale(mut self, max: f64) -> Self {
        assert!(
            is_scale(max) && max >= self.min,
            "max_loss_scale must be finite and at least min_loss_scale"
        );
        self.max = max as f32 as f64;
        self
    }

    /// Makes the `limit`-th skipped step in a row an error, [`StepError::SkipLimit`].
    ///
    /// By default training goes on skipping, with a warning at 1, 2, 4, 8, … skips at the floor.
    ///
    /// [`StepError::SkipLimit`]: crate::StepError::SkipLimit
    pub const fn skip_limit(mut self, limit: NonZeroU32) -> Self {
        self.skip_limit = Some(limit);
        self
    }

    /// [`min_loss_scale`](Self::min_loss_scale) and [`max_loss_scale`](Self::max_loss_scale) for
    /// values known at run time; `None` keeps the limit.
    ///
    /// # Errors
    ///
    /// When a limit is not a finite, positive, normal FP32 number, or the floor is above the
    /// ceiling.
    pub fn try_limits(mut self, min: Option<f64>, max: Option<f64>) -> Result<Self, ScaleError> {
        let checked = |setting, value| match is_scale(value) {
            true => Ok(value as f32 as f64),
            false => Err(ScaleError::NotAScale { setting, value }),
        };
        if let Some(min) = min {
            self.min = checked("min_loss_scale", min)?;
        }
        if let Some(max) = max {
            self.max = checked("max_loss_scale", max)?;
        }
        match self.min <= self.max {
            true => Ok(self),
            false => Err(ScaleError::MinAboveMax { min: self.min, max: self.max }),
        }
    }
}

impl Default for Dynamic {
    fn default() -> Self {
        Self::new()
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
const fn is_scale(value: f64) -> bool {
    value >= f32::MIN_POSITIVE as f64 && value <= f32::MAX as f64
}
