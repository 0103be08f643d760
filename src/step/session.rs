//! What the phases of a step share: the optimizer, the gradients, and the end.

use super::{
    Part, StepError, events,
    gradients::Gradients,
    outcome::{Overflow, StepOutcome},
};
use crate::{
    level::OptLevel,
    loss::LossCount,
    optimizer::{AmpOptimizer, Optimizer},
    scaler::Scaler,
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
        let grads = Gradients::new(opt.core.params.len(), N::USIZE, plain, opt.core.tables.clone());
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
        self.grads.check_lent(&self.opt.core.params)?;
        self.ended = true;
        if self.grads.overflowed() {
            return self.skip();
        }
        let applied = match self.grads.to_apply() {
            _ if self.grads.is_empty() => Ok(StepOutcome::NoGradients),
            (grads, factor) => self.opt.apply(grads, factor).map(|()| StepOutcome::Applied),
        };
        self.opt.core.keep_statistics();
        let good = applied.is_ok().then_some(false);
        let leave = |id| (id, self.opt.core.scales.leave(id, good));
        let left: Vec<_> = self.grads.losses().into_iter().map(leave).collect();
        left.iter().for_each(|(id, left)| events::grown(*id, left));
        Ok(applied?)
    }

    fn skip(&mut self) -> Result<StepOutcome, StepError> {
        let core = &self.opt.core;
        let restored = core.restore_statistics();
        let leave = |id| {
            let found = self.grads.overflow_of(id);
            (id, core.scales.leave(id, Some(found.is_some())), found)
        };
        let left: Vec<_> = self.grads.losses().into_iter().map(leave).collect();
        let mut overflows = Vec::new();
        let mut limit = Ok(());
        for (id, left, found) in left {
            events::grown(id, &left);
            let Some((parameter, kind)) = found else { continue };
            let overflow = Overflow { loss: id, parameter, kind, new_scale: left.scaler.scale() };
            if let Some(before) = left.updated_from {
                events::skipped(&left.scaler, before, &overflow);
                limit = limit.and_then(|()| within_limit(&left.scaler, &overflow));
            }
            overflows.push(overflow);
        }
        restored?;
        limit?;
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

/// Ends training that only skips, where the settings of the scale say so.
fn within_limit(scaler: &Scaler, overflow: &Overflow) -> Result<(), StepError> {
    let in_a_row = scaler.skipped_in_a_row();
    match scaler.settings().skip_limit() {
        Some(limit) if in_a_row >= u64::from(limit.get()) => {
            Err(StepError::SkipLimit { in_a_row, overflow: overflow.clone() })
        }
        _ => Ok(()),
    }
}
