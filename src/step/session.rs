//! What the phases of a step share: the optimizer, the gradients, and the end.

use tch::{Kind, Tensor};
use typenum::Unsigned;

use super::{
    StepError,
    gradients::Gradients,
    outcome::{Overflow, StepOutcome, report},
};
use crate::{
    level::OptLevel,
    loss::LossCount,
    optimizer::{AmpOptimizer, Optimizer},
};

/// A loss multiplied by its scale, ready for the backward pass.
#[must_use = "call `.backward()` to compute gradients"]
#[derive(Debug)]
pub struct ScaledLoss<'s, 'o, L: OptLevel, O: Optimizer, N: LossCount> {
    session: &'s mut Session<'o, L, O, N>,
    id: usize,
    scaled: Tensor,
}

impl<L: OptLevel, O: Optimizer, N: LossCount> ScaledLoss<'_, '_, L, O, N> {
    /// The scaled loss, FP32 or FP64.
    pub fn tensor(&self) -> &Tensor {
        &self.scaled
    }

    /// Runs the backward pass and adds its gradients to the step's, in FP32.
    ///
    /// # Errors
    ///
    /// See [`StepError`]. The step can go on; nothing was added.
    pub fn backward(self) -> Result<(), StepError> {
        let Session { opt, grads, .. } = self.session;
        let added = opt.variable_count.added();
        if added > 0 {
            return Err(StepError::AddedVariables { added });
        }
        grads.backward(&opt.params, &self.scaled, self.id, opt.scalers[self.id].scale())
    }
}

/// The step's hold on the optimizer. It outlives the phases, and ends the step when dropped.
#[derive(Debug)]
pub(super) struct Session<'o, L: OptLevel, O: Optimizer, N: LossCount> {
    pub(super) opt: &'o mut AmpOptimizer<L, O, N>,
    pub(super) grads: Gradients,
    ended: bool,
}

impl<'o, L: OptLevel, O: Optimizer, N: LossCount> Session<'o, L, O, N> {
    pub(super) fn new(opt: &'o mut AmpOptimizer<L, O, N>) -> Self {
        let grads = Gradients::new(opt.params.len(), N::USIZE, opt.properties.plain_step());
        Self { opt, grads, ended: false }
    }

    pub(super) fn scale_loss<I: Unsigned>(
        &mut self,
        loss: &Tensor,
    ) -> Result<ScaledLoss<'_, 'o, L, O, N>, StepError> {
        let kind = loss.f_kind()?;
        if loss.numel() != 1 {
            return Err(StepError::LossNotScalar { shape: loss.size() });
        }
        if !loss.requires_grad() {
            return Err(StepError::LossWithoutGraph);
        }
        let loss = match kind {
            Kind::Half | Kind::BFloat16 => loss.f_to_kind(Kind::Float)?,
            _ => loss.shallow_clone(),
        };
        let id = I::USIZE;
        let scaled = match self.opt.scalers[id].scale() {
            1.0 => loss,
            scale => loss.f_mul_scalar(scale)?,
        };
        Ok(ScaledLoss { session: self, id, scaled })
    }

    pub(super) fn end(&mut self) -> Result<StepOutcome, StepError> {
        self.ended = true;
        if self.grads.is_empty() {
            self.opt.running_stats.keep();
            return Ok(StepOutcome::NoGradients);
        }
        if self.grads.overflowed() {
            return self.skip();
        }
        let (grads, factor) = self.grads.to_apply();
        let applied = self.opt.apply(grads, factor);
        self.opt.running_stats.keep();
        applied?;
        for id in self.grads.losses() {
            self.opt.scalers[id].update(false);
        }
        Ok(StepOutcome::Applied)
    }

    fn skip(&mut self) -> Result<StepOutcome, StepError> {
        let Self { opt, grads, .. } = self;
        opt.running_stats.restore()?;
        let mut overflows = Vec::new();
        for id in grads.losses() {
            let found = grads.overflow_of(id);
            let scaler = &mut opt.scalers[id];
            scaler.update(found.is_some());
            if let Some((param, kind)) = found {
                let parameter = opt.params[param].name().to_owned();
                overflows.push(Overflow { loss: id, parameter, kind, new_scale: scaler.scale() });
            }
        }
        for overflow in &overflows {
            report(&opt.scalers[overflow.loss], overflow)?;
        }
        Ok(StepOutcome::Skipped { overflows })
    }
}

impl<L: OptLevel, O: Optimizer, N: LossCount> Drop for Session<'_, L, O, N> {
    /// A step that is given up after an overflow was seen counts as skipped; any other leaves no
    /// trace.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let settled = match self.grads.overflowed() {
            true => self.skip().map(|_| ()),
            false => {
                self.opt.running_stats.keep();
                Ok(())
            }
        };
        if let Err(error) = settled {
            tracing::error!(target: "tch_amp", "a step that was given up: {error}");
        }
    }
}
