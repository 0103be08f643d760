//! Batch norm's running statistics, restored when a step is skipped.
//!
//! The forward pass of a step that overflows has already moved them, to NaN at worst. Apex and
//! torch.amp leave them so.

use std::sync::{Mutex, PoisonError};

use tch::{TchError, Tensor};

use super::Variable;
use crate::libtorch;

/// The running statistics of a model, and their values before the current step.
#[derive(Debug, Default)]
pub(crate) struct RunningStats(Mutex<Stats>);

#[derive(Debug, Default)]
struct Stats {
    live: Vec<Tensor>,
    before_step: Option<Vec<Tensor>>,
}

impl RunningStats {
    pub(super) fn of(variables: &[Variable]) -> Self {
        let statistics = variables.iter().filter(|v| v.batch_norm && v.group.is_none());
        let live = statistics.map(|v| v.tensor.shallow_clone()).collect();
        Self(Mutex::new(Stats { live, before_step: None }))
    }

    /// Keeps the values of before the step's first forward pass. A pass without gradients belongs
    /// to no step.
    pub(super) fn before_forward(&self) {
        let mut stats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stats.before_step.is_none() && !stats.live.is_empty() && libtorch::grad_enabled() {
            stats.before_step = Some(stats.live.iter().map(Tensor::copy).collect());
        }
    }

    /// Lets the statistics stand.
    pub(crate) fn keep(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).before_step = None;
    }

    /// Puts the statistics back to what they were before the step.
    pub(crate) fn restore(&self) -> Result<(), TchError> {
        let _no_grad = tch::no_grad_guard();
        let mut stats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = stats.before_step.take() else { return Ok(()) };
        for (live, before) in stats.live.iter_mut().zip(before) {
            live.f_copy_(&before)?;
        }
        Ok(())
    }
}
