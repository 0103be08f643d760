//! A loss scale that follows the gradients.

use std::num::NonZeroU32;

use super::{ScaleError, settings::is_scale};

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
/// | `hysteresis` | 1: every overflow backs off | Megatron-LM's `DynamicGradScaler` |
/// | `consecutive_hysteresis` | 1 | Apex's `update_scale_hysteresis` |
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
    pub(super) refill: Refill,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) skip_limit: Option<NonZeroU32>,
}

/// What restores the count of overflows that do not back off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Refill {
    Growth,
    GoodStep,
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
            refill: Refill::Growth,
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
    pub const fn init_scale(self, scale: f64) -> Self {
        legal(self.try_init_scale(scale), "init_scale must be finite and greater than zero")
    }

    /// Sets the factor that the scale grows by.
    ///
    /// # Panics
    ///
    /// Unless `factor` is finite and greater than 1.
    #[track_caller]
    pub const fn growth_factor(self, factor: f64) -> Self {
        legal(self.try_growth_factor(factor), "growth_factor must be greater than 1")
    }

    /// Sets the factor that the scale backs off by.
    ///
    /// # Panics
    ///
    /// Unless `factor` lies between 0 and 1.
    #[track_caller]
    pub const fn backoff_factor(self, factor: f64) -> Self {
        legal(self.try_backoff_factor(factor), "backoff_factor must lie between 0 and 1")
    }

    /// Sets how many good steps in a row make the scale grow.
    ///
    /// # Panics
    ///
    /// When `steps` is 0.
    #[track_caller]
    pub const fn growth_interval(self, steps: u32) -> Self {
        legal(self.try_growth_interval(steps), "growth_interval must be at least 1")
    }

    /// Sets how many overflows it takes for the scale to back off, counted since it last grew.
    ///
    /// The rule of Megatron-LM: each overflow takes one off the count, and from the one that uses
    /// it up, every overflow backs off. The end of a growth interval refills the count, also where
    /// the scale is at its ceiling; good steps alone do not. Each overflow skips its step whether
    /// the scale backs off or not. Replaces
    /// [`consecutive_hysteresis`](Self::consecutive_hysteresis).
    ///
    /// # Panics
    ///
    /// When `overflows` is 0.
    #[track_caller]
    pub const fn hysteresis(self, overflows: u32) -> Self {
        legal(self.try_hysteresis(overflows), "hysteresis must be at least 1")
    }

    /// Sets how many overflows in a row it takes for the scale to back off.
    ///
    /// As [`hysteresis`](Self::hysteresis), which it replaces, but each good step refills the
    /// count: the rule of Apex's `update_scale_hysteresis`, under DeepSpeed's name.
    ///
    /// # Panics
    ///
    /// When `overflows` is 0.
    #[track_caller]
    pub const fn consecutive_hysteresis(self, overflows: u32) -> Self {
        let set = self.try_consecutive_hysteresis(overflows);
        legal(set, "consecutive_hysteresis must be at least 1")
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

/// The setters for values known at run time.
impl Dynamic {
    pub(crate) const fn try_init_scale(mut self, scale: f64) -> Result<Self, ScaleError> {
        self.init_scale = scale as f32 as f64;
        match is_scale(scale) {
            true => Ok(self),
            false => Err(ScaleError::NotAScale { setting: "init_scale", value: scale }),
        }
    }

    pub(crate) const fn try_growth_factor(mut self, factor: f64) -> Result<Self, ScaleError> {
        self.growth_factor = factor;
        let legal = factor > 1.0 && factor.is_finite();
        self.when(legal, "growth_factor", factor, "be greater than 1")
    }

    pub(crate) const fn try_backoff_factor(mut self, factor: f64) -> Result<Self, ScaleError> {
        self.backoff_factor = factor;
        let legal = factor > 0.0 && factor < 1.0;
        self.when(legal, "backoff_factor", factor, "lie between 0 and 1")
    }

    pub(crate) const fn try_growth_interval(mut self, steps: u32) -> Result<Self, ScaleError> {
        self.growth_interval = steps;
        self.when(steps > 0, "growth_interval", steps as f64, "be at least 1")
    }

    pub(crate) const fn try_hysteresis(mut self, overflows: u32) -> Result<Self, ScaleError> {
        (self.hysteresis, self.refill) = (overflows, Refill::Growth);
        self.when(overflows > 0, "hysteresis", overflows as f64, "be at least 1")
    }

    pub(crate) const fn try_consecutive_hysteresis(
        mut self,
        overflows: u32,
    ) -> Result<Self, ScaleError> {
        (self.hysteresis, self.refill) = (overflows, Refill::GoodStep);
        self.when(overflows > 0, "consecutive_hysteresis", overflows as f64, "be at least 1")
    }

    const fn when(
        self,
        legal: bool,
        setting: &'static str,
        value: f64,
        must: &'static str,
    ) -> Result<Self, ScaleError> {
        match legal {
            true => Ok(self),
            false => Err(ScaleError::Setting { setting, value, must }),
        }
    }
}

#[track_caller]
#[expect(clippy::panic, reason = "in a `const`, it is the compiler's message")]
const fn legal(set: Result<Dynamic, ScaleError>, otherwise: &str) -> Dynamic {
    match set {
        Ok(set) => set,
        Err(_) => panic!("{}", otherwise),
    }
}

impl Default for Dynamic {
    fn default() -> Self {
        Self::new()
    }
}
