//! What the phases of a step share: the optimizer, the gradients, and the end.

use super::{
    Part, StepError,
    gradients::Gradients,
    outcome::{Overflow, StepOutcome, report},
};
use crate::{
    level::OptLevel,
    loss::LossCount,
    optimizer::{AmpOptimizer, Optimizer},
};

/// The step's hold on the optimizer. It outlives the phases, and ends the step when dropped.
#[derive(Debug)]
pub(super) struct Session<'o, L: OptLevel, O: Optimizer, N: LossCount> {
    pub(super) opt: &'o mut AmpOptimizer<L, O, N>,
    pub(super) grads: Gradients,
    ended: bool,
}

impl<'o, L: OptLevel, O: Optimizer, N: LossCount> Session<'o, L, O, N> {
    pub(super) fn new(opt: &'o mut AmpOptimizer<L, O, N>) -> Self {
        let plain = opt.core.properties.plain_step();
        let grads = Gradients::new(opt.core.params.len(), N::USIZE, plain);
        Self { opt, grads, ended: false }
    }

    /// What a backward pass needs of the step.
    pub(super) fn part(&mut self) -> Part<'_> {
        Part { core: &mut self.opt.core, grads: &mut self.grads }
    }

    pub(super) fn unscale(&mut self) -> Result<(), StepError> {
        self.grads.unscale(&self.opt.core.params)
    }

    pub(super) fn end(&mut self) -> Result<StepOutcome, StepError> {
        self.ended = true;
        if self.grads.overflowed() {
            return self.skip();
        }
        let applied = match self.grads.to_apply() {
            _ if self.grads.is_empty() => Ok(StepOutcome::NoGradients),
            (grads, factor) => self.opt.apply(grads, factor).map(|()| StepOutcome::Applied),
        };
        self.opt.core.keep_statistics();
        for id in self.grads.losses() {
            self.opt.core.scales.leave(id, applied.is_ok().then_some(false));
        }
        Ok(applied?)
    }

    fn skip(&mut self) -> Result<StepOutcome, StepError> {
        let core = &self.opt.core;
        let restored = core.restore_statistics();
        let mut overflows = Vec::new();
        let mut updated = Vec::new();
        for id in self.grads.losses() {
            let found = self.grads.overflow_of(id);
            let left = core.scales.leave(id, Some(found.is_some()));
            if let Some((parameter, kind)) = found {
                let new_scale = left.scaler.scale();
                let overflow = Overflow { loss: id, parameter, kind, new_scale };
                updated.extend(left.updated.then(|| (left.scaler, overflow.clone())));
                overflows.push(overflow);
            }
        }
        restored?;
        for (scaler, overflow) in &updated {
            report(scaler, overflow)?;
        }
        Ok(StepOutcome::Skipped { overflows })
    }

    /// Ends a step that is given up: after an overflow was seen it counts as skipped, any other
    /// leaves no trace.
    fn give_up(&mut self) -> Result<(), StepError> {
        if self.grads.overflowed() {
            return self.skip().map(|_| ());
        }
        self.opt.core.keep_statistics();
        for id in self.grads.losses() {
            self.opt.core.scales.leave(id, None);
        }
        Ok(())
    }
}

impl<L: OptLevel, O: Optimizer, N: LossCount> Drop for Session<'_, L, O, N> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Err(error) = self.give_up() {
            tracing::error!(target: "tch_amp", "a step that was given up: {error}");
        }
    }
}
