//! A loss multiplied by its scale, and the backward pass.

use std::{borrow::Borrow, sync::Arc};

use tch::{Kind, Tensor};

use super::{StepError, gradients::Gradients};
use crate::{
    libtorch,
    optimizer::{Core, Param},
};

/// A loss multiplied by its scale, ready for the backward pass.
#[must_use = "call `.backward()` to compute gradients"]
#[derive(Debug)]
pub struct ScaledLoss<'s> {
    parts: Vec<Part<'s>>,
    id: usize,
    scale: f64,
    scaled: Tensor,
    retain_graph: bool,
}

/// A step as a backward pass sees it.
#[derive(Debug)]
pub struct Part<'s> {
    pub(super) core: &'s mut Core,
    pub(super) grads: &'s mut Gradients,
}

impl<'s> ScaledLoss<'s> {
    /// Multiplies the loss by its scale, for one step or for several of the same `build`.
    pub(super) fn new(
        mut parts: Vec<Part<'s>>,
        id: usize,
        loss: &Tensor,
    ) -> Result<Self, StepError> {
        let kind = loss.f_kind()?;
        if loss.numel() != 1 {
            return Err(StepError::LossNotScalar { shape: loss.size() });
        }
        if !loss.requires_grad() {
            return Err(StepError::LossWithoutGraph);
        }
        let Some(scales) = parts.first().map(|part| Arc::clone(&part.core.scales)) else {
            return Err(StepError::NoSteps);
        };
        if parts.iter().any(|part| !Arc::ptr_eq(&part.core.scales, &scales)) {
            return Err(StepError::OfDifferentBuilds);
        }
        for part in &mut parts {
            part.core.take_up().map_err(|source| StepError::AddedLayer { source })?;
        }
        let loss = match kind {
            Kind::Half | Kind::BFloat16 => loss.f_to_kind(Kind::Float)?,
            _ => loss.shallow_clone(),
        };
        let scale = scales.of(id);
        let scaled = match scale {
            1.0 => loss,
            scale => loss.f_mul_scalar(scale)?,
        };
        Ok(Self { parts, id, scale, scaled, retain_graph: false })
    }

    /// The scaled loss, FP32 or FP64.
    pub fn tensor(&self) -> &Tensor {
        &self.scaled
    }

    /// Keeps the graph, so that a backward pass of another loss can go through it: torch's
    /// `backward(retain_graph=True)`.
    pub fn retain_graph(mut self) -> Self {
        self.retain_graph = true;
        self
    }

    /// Runs the backward pass and adds its gradients to the step's, in FP32.
    ///
    /// # Errors
    ///
    /// See [`StepError`]. The step can go on; nothing was added.
    ///
    /// # Syncs
    ///
    /// Once where several steps are fed, to see whether the gradients of all are finite.
    pub fn backward(self) -> Result<(), StepError> {
        let Self { mut parts, id, scale, scaled, retain_graph } = self;
        for part in &parts {
            drop(part.take_grads());
        }
        let done = libtorch::backward(&scaled, retain_graph);
        let taken: Vec<_> = parts.iter().map(Part::take_grads).collect();
        done?;
        let mut added = Vec::with_capacity(parts.len());
        for grads in taken {
            added.push(grads.into_iter().map(dense).collect::<Result<Vec<_>, _>>()?);
        }
        let together = parts.len() > 1;
        let mut found = None;
        for (part, grads) in parts.iter_mut().zip(added) {
            if grads.iter().any(Option::is_some) {
                part.add((id, scale), grads)?;
                if together {
                    let finding = part.grads.check_latest(&part.core.params)?;
                    found = found.or(finding);
                }
            }
        }
        parts.iter_mut().for_each(|part| part.grads.note(id, found.clone()));
        Ok(())
    }

    /// The gradients of the loss with respect to `inputs`, unscaled and in FP32, with a graph of
    /// their own: for a gradient penalty. torch's `autograd.grad(…, create_graph=True)`.
    ///
    /// Nothing is added to the step; the graph of the loss is kept for its own backward pass.
    ///
    /// ```no_run
    /// # use tch::{Kind, Tensor, nn::{Linear, ModuleT}};
    /// # use tch_amp::{AmpModel, AmpOptimizer, O2, StepError, StepOutcome, optim::Sgd};
    /// # fn f(model: AmpModel<O2, Linear>, opt: &mut AmpOptimizer<O2, Sgd>, xs: &Tensor)
    /// # -> Result<StepOutcome, StepError> {
    /// let mut step = opt.begin();
    /// let loss = model.forward_t(xs, true).square().mean(Kind::Float);
    /// let grads = step.scale_loss(&loss)?.grad(&[&model.inner().ws])?;
    /// let penalty = grads[0].square().sum(Kind::Float);
    /// step.backward(&(loss + penalty * 0.1))?;
    /// step.unscale()?.step()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StepError::UnusedInput`] for an input that the loss does not depend on; otherwise when
    /// libtorch refuses the pass.
    pub fn grad<T: Borrow<Tensor>>(self, inputs: &[T]) -> Result<Vec<Tensor>, StepError> {
        let grads = Tensor::f_run_backward(&[&self.scaled], inputs, true, true)?;
        let mut unscaled = Vec::with_capacity(grads.len());
        for (index, grad) in grads.into_iter().enumerate() {
            if !grad.defined() {
                return Err(StepError::UnusedInput { index });
            }
            unscaled.push(grad.f_to_kind(Kind::Float)?.f_mul_scalar(1.0 / self.scale)?);
        }
        Ok(unscaled)
    }
}

impl Part<'_> {
    /// Moves the gradients out of the parameters.
    fn take_grads(&self) -> Vec<Option<Tensor>> {
        let take = |param: &Param| libtorch::take_grad(param.weight());
        self.core.params.iter().map(take).collect()
    }

    fn add(&mut self, loss: (usize, f64), grads: Vec<Option<Tensor>>) -> Result<(), StepError> {
        if self.grads.add(&self.core.params, loss, grads)? {
            self.core.scales.join(loss.0);
        }
        Ok(())
    }
}

/// A gradient that an embedding with `sparse = true` made, as an ordinary tensor.
fn dense(grad: Option<Tensor>) -> Result<Option<Tensor>, StepError> {
    match grad {
        Some(grad) if grad.is_sparse() => Ok(Some(grad.f_to_dense(None, false)?)),
        grad => Ok(grad),
    }
}
