//! What a step did.

use std::fmt;

pub use crate::multi_tensor::NonFinite;

/// What a step did.
#[must_use = "a skipped step must not advance a learning-rate schedule"]
#[derive(Debug, Clone, PartialEq)]
pub enum StepOutcome {
    /// The weights were updated.
    Applied,
    /// A gradient was not finite; nothing but the scale changed.
    Skipped {
        /// What was found, for each loss whose gradients were not finite; never empty.
        overflows: Vec<Overflow>,
    },
    /// No parameter had a gradient; nothing changed, the scale included.
    NoGradients,
}

impl StepOutcome {
    /// Whether the weights were updated.
    pub fn is_applied(&self) -> bool {
        matches!(self, Self::Applied)
    }

    /// Calls `advance` if the weights were updated: a learning-rate schedule goes on then, and only
    /// then. torch warns "lr_scheduler.step() before optimizer.step()" where a first step is
    /// skipped.
    ///
    /// ```no_run
    /// # use tch::Tensor;
    /// # use tch_amp::{AmpOptimizer, O2, optim::AdamW};
    /// # fn f(opt: &mut AmpOptimizer<O2, AdamW>, losses: Vec<Tensor>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut applied = 0;
    /// for loss in losses {
    ///     opt.backward_step(&loss)?.outcome().on_applied(|| applied += 1);
    ///     opt.set_lr(3e-4 * f64::min(1.0, f64::from(applied + 1) / 100.0))?; // warm-up
    /// }
    /// # Ok(()) }
    /// ```
    pub fn on_applied<R>(&self, advance: impl FnOnce() -> R) -> Option<R> {
        self.is_applied().then(advance)
    }
}

/// Non-finite gradients of one loss.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Overflow {
    /// The id of the loss.
    pub loss: usize,
    /// The first parameter, in the order of creation, whose gradient was not finite.
    pub parameter: String,
    /// Whether its gradient holds a NaN or only infinities.
    pub kind: NonFinite,
    /// The scale that the next step uses for this loss.
    pub new_scale: f64,
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, parameter, kind, new_scale } = self;
        write!(f, "{kind:?} in the gradient of `{parameter}` (loss {loss}, scale now {new_scale})")
    }
}

/// The outcome of [`backward_step`](crate::AmpOptimizer::backward_step), for whoever asks.
#[derive(Debug, Clone)]
pub struct PendingOutcome(StepOutcome);

impl PendingOutcome {
    pub(crate) fn new(outcome: StepOutcome) -> Self {
        Self(outcome)
    }

    /// What the step did.
    pub fn outcome(self) -> StepOutcome {
        self.0
    }
}
