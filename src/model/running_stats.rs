//! Batch norm's running statistics, restored when a step is skipped.
//!
//! The forward pass of a step that overflows has already moved them, to NaN at worst. Apex and
//! torch.amp leave them so.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{TchError, Tensor};

use super::Variable;
use crate::libtorch;

/// The running statistics of a model, and for each of its optimizers their values before that
/// optimizer's current step.
#[derive(Debug, Default)]
pub(crate) struct RunningStats(Mutex<Stats>);

#[derive(Debug, Default)]
struct Stats {
    live: Vec<Tensor>,
    before_step: Vec<Option<Vec<Tensor>>>,
}

impl RunningStats {
    /// Adds the statistics among the variables.
    pub(super) fn watch(&self, variables: &[Variable]) {
        let statistics = variables.iter().filter(|v| v.batch_norm && !v.trainable());
        self.lock().live.extend(statistics.map(|v| v.tensor.shallow_clone()));
    }

    /// Adds an optimizer.
    pub(super) fn add_optimizer(&self) {
        self.lock().before_step.push(None);
    }

    /// Keeps the values of before the first forward pass of each optimizer's step. A pass without
    /// gradients belongs to no step.
    pub(super) fn before_forward(&self) {
        let mut stats = self.lock();
        let Stats { live, before_step } = &mut *stats;
        if live.is_empty() || before_step.iter().all(Option::is_some) || !libtorch::grad_enabled() {
            return;
        }
        let values: Vec<_> = live.iter().map(Tensor::copy).collect();
        for before in before_step.iter_mut().filter(|before| before.is_none()) {
            *before = Some(values.iter().map(Tensor::shallow_clone).collect());
        }
    }

    /// Lets the statistics stand.
    pub(super) fn keep(&self, optimizer: usize) {
        self.lock().before_step[optimizer] = None;
    }

    /// Lets the statistics stand for all optimizers: new ones were loaded.
    pub(super) fn keep_all(&self) {
        self.lock().before_step.fill_with(|| None);
    }

    /// Puts the statistics back to what they were before the optimizer's step.
    pub(super) fn restore(&self, optimizer: usize) -> Result<(), TchError> {
        let _no_grad = tch::no_grad_guard();
        let mut stats = self.lock();
        let Some(before) = stats.before_step[optimizer].take() else { return Ok(()) };
        for (live, before) in stats.live.iter_mut().zip(before) {
            live.f_copy_(&before)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Stats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
