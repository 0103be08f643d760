//! The gradients of one step, from the first backward pass to the update.

use tch::Tensor;

use super::StepError;
use crate::{
    multi_tensor::{self, Check, NonFinite, Tables},
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
    /// Whether handles on the gradients were given out, through which they can be written.
    lent: bool,
    tables: Tables,
}

/// What is known of one loss's gradients: the first parameter with a non-finite one.
pub(super) type Finding = Option<(String, NonFinite)>;

/// The gradients of one backward pass.
#[derive(Debug)]
struct Latest {
    loss: usize,
    scale: f64,
    grads: Vec<Option<Tensor>>,
    /// What a look at them has found, if there was one.
    check: Option<Check>,
}

impl Gradients {
    pub(super) fn new(params: usize, losses: usize, plain: bool, tables: Tables) -> Self {
        Self {
            latest: None,
            sums: std::iter::repeat_with(|| None).take(params).collect(),
            losses: vec![None; losses],
            factor: 1.0,
            squared_norm: None,
            plain,
            lent: false,
            tables,
        }
    }

    /// Adds the gradients of one backward pass. Returns whether it is the loss's first.
    pub(super) fn add(
        &mut self,
        params: &[Param],
        (loss, scale): (usize, f64),
        grads: Vec<Option<Tensor>>,
    ) -> Result<bool, StepError> {
        self.fold(params)?;
        self.sums.resize_with(params.len(), || None);
        self.latest = Some(Latest { loss, scale, grads, check: None });
        let first = self.losses[loss].is_none();
        self.losses[loss].get_or_insert(None);
        Ok(first)
    }

    /// Looks for non-finite values in the gradients of the latest pass.
    pub(super) fn check_latest(&mut self, params: &[Param]) -> Result<Finding, StepError> {
        let Some(latest) = self.latest.as_mut().filter(|_| !self.plain) else { return Ok(None) };
        let check = multi_tensor::check(&self.tables, &latest.grads, (1.0 / latest.scale) as f32)?;
        latest.check = Some(check);
        Ok(finding(params, check))
    }

    /// Divides by the scale and looks for non-finite values.
    pub(super) fn unscale(&mut self, params: &[Param]) -> Result<(), StepError> {
        let single = self.sums.iter().all(Option::is_none);
        match self.latest.take() {
            Some(latest) if single => {
                self.factor = 1.0 / latest.scale;
                if !self.plain {
                    let check = match latest.check {
                        Some(check) => check,
                        None => {
                            multi_tensor::check(&self.tables, &latest.grads, self.factor as f32)?
                        }
                    };
                    self.note(latest.loss, finding(params, check));
                    // The check looked at the unscaled values, the norm here is of the scaled ones.
                    self.squared_norm = Some(check.squared_norm / self.factor.powi(2));
                }
                self.sums = latest.grads;
            }
            latest => {
                self.latest = latest;
                self.fold(params)?;
            }
        }
        Ok(())
    }

    /// Adds the latest pass's gradients to the sums.
    fn fold(&mut self, params: &[Param]) -> Result<(), StepError> {
        let Some(Latest { loss, scale, grads, .. }) = self.latest.take() else { return Ok(()) };
        let factor = (1.0 / scale) as f32;
        let mut check = multi_tensor::accumulate(&self.tables, &mut self.sums, &grads, factor)?;
        // Sums that are spoilt already say nothing of this pass.
        if self.overflowed() {
            check = multi_tensor::check(&self.tables, &grads, factor)?;
        }
        self.note(loss, finding(params, check));
        Ok(())
    }

    /// Notes what was found in a loss's gradients, unless there are none.
    pub(super) fn note(&mut self, loss: usize, found: Finding) {
        if let Some(finding @ None) = &mut self.losses[loss] {
            *finding = found.filter(|_| !self.plain);
        }
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
        self.losses[loss].clone().flatten()
    }

    /// The gradients, and what they are still to be multiplied by.
    pub(super) fn to_apply(&self) -> (&[Option<Tensor>], f32) {
        (&self.sums, self.factor as f32)
    }

    /// The gradients as true FP32 values, for whoever wants to see them.
    pub(super) fn lend(&mut self) -> Result<&[Option<Tensor>], StepError> {
        self.lent = true;
        self.full().map(|grads| &*grads)
    }

    /// Looks again at gradients that were given out: torch applies what is written to them between
    /// `unscale_` and `step`, NaN included.
    pub(super) fn check_lent(&mut self, params: &[Param]) -> Result<(), StepError> {
        if self.lent && !self.overflowed() {
            let check = multi_tensor::check(&self.tables, &self.sums, self.factor as f32)?;
            if let Some(&first) = self.losses().first() {
                self.note(first, finding(params, check));
            }
        }
        Ok(())
    }

    /// The gradients as true FP32 values.
    fn full(&mut self) -> Result<&mut [Option<Tensor>], StepError> {
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
            None => multi_tensor::check(&self.tables, &self.sums, 1.0)?.squared_norm,
        };
        self.squared_norm = Some(squared);
        Ok(squared.sqrt() * self.factor)
    }
}

/// The first parameter that a check found not to be finite.
fn finding(params: &[Param], check: Check) -> Finding {
    let (index, kind) = check.non_finite?;
    params.get(index).map(|param| (param.name().to_owned(), kind))
}
