//! Clipping of unscaled gradients.

use std::fmt;

use super::{StepError, gradients::Gradients};

/// The global L2 norm of a step's gradients.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct GradNorm(f64);

impl GradNorm {
    /// The norm; infinite or NaN when the gradients are.
    pub fn value(&self) -> f64 {
        self.0
    }
}

impl fmt::Display for GradNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Gradients {
    pub(super) fn norm(&mut self) -> Result<GradNorm, StepError> {
        self.norm_value().map(GradNorm)
    }

    pub(super) fn clip_norm(&mut self, max_norm: f64) -> Result<GradNorm, StepError> {
        check("clip_grad_norm", max_norm)?;
        let norm = self.norm_value()?;
        let coefficient = max_norm / (norm + 1e-6);
        if norm.is_finite() && coefficient < 1.0 {
            self.scale_by(coefficient);
        }
        Ok(GradNorm(norm))
    }

    pub(super) fn clip_value(&mut self, max: f64) -> Result<(), StepError> {
        check("clip_grad_value", max)?;
        match self.overflowed() {
            true => Ok(()),
            false => self.change(|grad| grad.f_clamp_(-max, max)),
        }
    }
}

fn check(method: &'static str, max: f64) -> Result<(), StepError> {
    match max >= 0.0 {
        true => Ok(()),
        false => Err(StepError::ClipLimit { method, max }),
    }
}
