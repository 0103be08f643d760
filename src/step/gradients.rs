//! The gradients of one step, from the first backward pass to the update.

use tch::Tensor;

use super::StepError;
use crate::{
    libtorch,
    multi_tensor::{self, Check, NonFinite},
    optimizer::Param,
};

/// The gradients of one step, by parameter.
///
/// The last backward pass's gradients stay as libtorch made them, 16 bits where the weights are,
/// until it is clear that no other follows: a step with one backward pass reads them just once
/// more. With several passes they add up in FP32, unscaled, each by its own loss's scale.
#[derive(Debug)]
pub(super) struct Gradients {
    latest: Option<Latest>,
    sums: Vec<Option<Tensor>>,
    /// By loss id: `None` for a loss that took no part.
    losses: Vec<Option<Finding>>,
    /// What the gradients in `sums` are still to be multiplied by.
    factor: f64,
    /// The squared norm of the gradients in `sums`, before `factor`.
    squared_norm: Option<f64>,
    /// Whether non-finite values are none of our business, as in plain `tch`.
    plain: bool,
}

/// What is known of one loss's gradients: the first parameter with a non-finite one.
type Finding = Option<(usize, NonFinite)>;

#[derive(Debug)]
struct Latest {
    loss: usize,
    scale: f64,
    grads: Vec<Option<Tensor>>,
}

impl Gradients {
    pub(super) fn new(params: usize, losses: usize, plain: bool) -> Self {
        Self {
            latest: None,
            sums: std::iter::repeat_with(|| None).take(params).collect(),
            losses: vec![None; losses],
            factor: 1.0,
            squared_norm: None,
            plain,
        }
    }

    /// Runs a backward pass and takes the gradients out of the parameters.
    pub(super) fn backward(
        &mut self,
        params: &[Param],
        scaled_loss: &Tensor,
        loss: usize,
        scale: f64,
    ) -> Result<(), StepError> {
        for param in params {
            drop(libtorch::take_grad(param.weight()));
        }
        let done = scaled_loss.f_backward();
        let grads: Vec<_> = params.iter().map(|p| libtorch::take_grad(p.weight())).collect();
        done?;
        if grads.iter().any(Option::is_some) {
            let grads = grads.into_iter().map(dense).collect::<Result<_, _>>()?;
            self.fold()?;
            self.losses[loss].get_or_insert(None);
            self.latest = Some(Latest { loss, scale, grads });
        }
        Ok(())
    }

    /// Divides by the scale and looks for non-finite values.
    pub(super) fn unscale(&mut self) -> Result<(), StepError> {
        let single = self.sums.iter().all(Option::is_none);
        match self.latest.take() {
            Some(latest) if single => {
                self.factor = 1.0 / latest.scale;
                if !self.plain {
                    let check = multi_tensor::check(&latest.grads, self.factor as f32)?;
                    self.note(latest.loss, check);
                    // The check looked at the unscaled values, the norm here is of the scaled ones.
                    self.squared_norm = Some(check.squared_norm / self.factor.powi(2));
                }
                self.sums = latest.grads;
            }
            latest => {
                self.latest = latest;
                self.fold()?;
            }
        }
        Ok(())
    }

    /// Adds the latest pass's gradients to the sums.
    fn fold(&mut self) -> Result<(), StepError> {
        let Some(Latest { loss, scale, grads }) = self.latest.take() else { return Ok(()) };
        let check = multi_tensor::accumulate(&mut self.sums, &grads, (1.0 / scale) as f32)?;
        self.note(loss, check);
        Ok(())
    }

    fn note(&mut self, loss: usize, check: Check) {
        let finding = self.losses[loss].get_or_insert(None);
        *finding = finding.or(check.non_finite.filter(|_| !self.plain));
    }

    /// Whether no parameter has a gradient.
    pub(super) fn is_empty(&self) -> bool {
        self.sums.iter().all(Option::is_none)
    }

    /// Whether some loss's gradients are known not to be finite.
    pub(super) fn overflowed(&self) -> bool {
        self.losses.iter().flatten().any(Option::is_some)
    }

    /// The ids of the losses that took part.
    pub(super) fn losses(&self) -> Vec<usize> {
        (0..self.losses.len()).filter(|&id| self.losses[id].is_some()).collect()
    }

    /// The first parameter for which this loss's gradient was not finite.
    pub(super) fn overflow_of(&self, loss: usize) -> Finding {
        self.losses[loss].flatten()
    }

    /// The gradients, and what they are still to be multiplied by.
    pub(super) fn to_apply(&self) -> (&[Option<Tensor>], f32) {
        (&self.sums, self.factor as f32)
    }

    /// The gradients as true FP32 values.
    pub(super) fn full(&mut self) -> Result<&mut [Option<Tensor>], StepError> {
        let _no_grad = tch::no_grad_guard();
        for grad in self.sums.iter_mut().flatten() {
            *grad = multi_tensor::scale(grad, self.factor as f32)?;
        }
        self.squared_norm = self.squared_norm.map(|squared| squared * self.factor.powi(2));
        self.factor = 1.0;
        Ok(&mut self.sums)
    }

    /// Multiplies all gradients by `coefficient`, at the time they are next read.
    pub(super) fn scale_by(&mut self, coefficient: f64) {
        self.factor *= coefficient;
    }

    /// Replaces the gradients by what `change` makes of their FP32 values.
    pub(super) fn change(
        &mut self,
        change: impl Fn(&mut Tensor) -> Result<Tensor, tch::TchError>,
    ) -> Result<(), StepError> {
        let _no_grad = tch::no_grad_guard();
        for grad in self.full()?.iter_mut().flatten() {
            *grad = change(grad)?;
        }
        self.squared_norm = None;
        Ok(())
    }

    /// The global L2 norm as the gradients are now.
    pub(super) fn norm_value(&mut self) -> Result<f64, StepError> {
        let squared = match self.squared_norm {
            Some(squared) => squared,
            None => multi_tensor::check(&self.sums, 1.0)?.squared_norm,
        };
        self.squared_norm = Some(squared);
        Ok(squared.sqrt() * self.factor)
    }
}

/// A gradient that an embedding with `sparse = true` made, as an ordinary tensor.
fn dense(grad: Option<Tensor>) -> Result<Option<Tensor>, StepError> {
    match grad {
        Some(grad) if grad.is_sparse() => Ok(Some(grad.f_to_dense(None, false)?)),
        grad => Ok(grad),
    }
}
