//! The state machine of one loss scale, pure and without tensors.

use super::{Dynamic, LossScale, dynamic::Refill};

/// The scale of one loss and what happened to it.
///
/// The scale is finite, positive and a normal FP32 number at all times, and always inside the
/// limits of its settings. It is updated once for each step that the loss took part in (Apex
/// counts backward passes; torch counts steps, as here).
#[derive(Debug, Clone, PartialEq)]
pub struct Scaler {
    pub(super) settings: LossScale,
    pub(super) scale: f64,
    pub(super) unskipped: u64,
    pub(super) overflows_left: u32,
    pub(super) skipped: u64,
    pub(super) skipped_in_a_row: u64,
    pub(super) stuck_in_a_row: u64,
}

impl Scaler {
    /// Starts a scale from its settings.
    pub fn new(settings: LossScale) -> Self {
        let (scale, overflows_left) = match settings {
            LossScale::Static(s) => (s.scale(), 1),
            LossScale::Dynamic(d) => (d.init_scale.clamp(d.min, d.max), d.hysteresis),
        };
        Self {
            settings,
            scale,
            unskipped: 0,
            overflows_left,
            skipped: 0,
            skipped_in_a_row: 0,
            stuck_in_a_row: 0,
        }
    }

    /// The settings.
    pub const fn settings(&self) -> LossScale {
        self.settings
    }

    /// The factor that the next step multiplies the loss by.
    pub const fn scale(&self) -> f64 {
        self.scale
    }

    /// Good steps since the scale last changed or overflowed: Apex's `unskipped`.
    pub const fn unskipped(&self) -> u64 {
        self.unskipped
    }

    /// Steps skipped because of this loss, ever.
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Steps skipped because of this loss since its last good step.
    pub const fn skipped_in_a_row(&self) -> u64 {
        self.skipped_in_a_row
    }

    /// Steps skipped in a row with a scale that could not go any lower.
    pub const fn stuck_in_a_row(&self) -> u64 {
        self.stuck_in_a_row
    }

    /// Notes the end of a step: `overflow` tells whether this loss's gradients were not finite.
    pub fn update(&mut self, overflow: bool) {
        match (overflow, self.settings) {
            (true, settings) => {
                self.unskipped = 0;
                self.skipped += 1;
                self.skipped_in_a_row += 1;
                self.stuck_in_a_row = if self.at_floor() { self.stuck_in_a_row + 1 } else { 0 };
                if let LossScale::Dynamic(d) = settings {
                    self.back_off(&d);
                }
            }
            (false, settings) => {
                self.unskipped += 1;
                self.skipped_in_a_row = 0;
                self.stuck_in_a_row = 0;
                if let LossScale::Dynamic(d) = settings {
                    if d.refill == Refill::GoodStep {
                        self.overflows_left = d.hysteresis;
                    }
                    if self.unskipped >= u64::from(d.growth_interval) {
                        self.grow(&d);
                    }
                }
            }
        }
    }

    /// Whether the scale sits at its floor, or cannot move at all.
    fn at_floor(&self) -> bool {
        match self.settings {
            LossScale::Static(_) => true,
            LossScale::Dynamic(d) => self.scale <= d.min,
        }
    }

    fn back_off(&mut self, d: &Dynamic) {
        self.overflows_left = self.overflows_left.saturating_sub(1);
        if self.overflows_left == 0 {
            self.scale = as_f32(self.scale * d.backoff_factor).max(d.min);
        }
    }

    /// A growth that would leave FP32 does not happen (torch's rule); the run starts anew.
    fn grow(&mut self, d: &Dynamic) {
        let grown = self.scale * d.growth_factor;
        if grown <= f64::from(f32::MAX) {
            self.scale = as_f32(grown).min(d.max);
        }
        self.unskipped = 0;
        self.overflows_left = d.hysteresis;
    }
}

/// Rounds to FP32, the type the scale has on a device.
fn as_f32(scale: f64) -> f64 {
    f64::from(scale as f32)
}
