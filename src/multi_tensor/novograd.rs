//! NovoGrad: a second moment for each tensor, not for each element.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, TchError, Tensor};

use super::{
    Update,
    cpu::{self, InstructionSet},
    rule::ElementRule,
    tensor_ops,
};
use crate::libtorch::slice_mut;

/// The norm of a gradient that [`NovoGrad`](crate::optim::NovoGrad) divides it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormType {
    /// The root of the sum of the squares: Apex's `norm_type=2`.
    L2,
    /// The largest magnitude: Apex's `norm_type=0`.
    Max,
}

/// With `n` the norm of the gradient, and `d = root_scale·v + ε`:
/// `v = √(β₂v² + (1-β₂)n²)`, or `β₂v + (1-β₂)n` for the largest magnitude;
/// `m = β₁m + fresh·g; w = keep·w - step_size · m / d`. Where `inside` is true,
/// `m = β₁m + fresh·(g / d + l2·w); w -= step_size · m`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NovoGradRule {
    pub(crate) norm: NormType,
    /// Whether `v` becomes the norm of this gradient as it is.
    pub(crate) first: bool,
    pub(crate) beta1: f32,
    pub(crate) fresh: f32,
    pub(crate) beta2: f64,
    pub(crate) root_scale: f32,
    pub(crate) eps: f32,
    pub(crate) inside: bool,
    pub(crate) l2: f32,
    pub(crate) keep: f32,
    pub(crate) step_size: f32,
}

impl NovoGradRule {
    /// Applies the rules; the state is `m` with as many elements as the weight, and `v` with one.
    pub(crate) fn update(updates: &mut [Update<'_, Self, 2>]) -> Result<(), TchError> {
        let _no_grad = tch::no_grad_guard();
        match updates.iter().all(|update| update.weight.device() == Device::Cpu) {
            true => Self::loops(updates, InstructionSet::chosen()),
            false => Self::tensors(updates),
        }
    }

    /// On the CPU.
    pub(super) fn loops(
        updates: &mut [Update<'_, Self, 2>],
        set: InstructionSet,
    ) -> Result<(), TchError> {
        let norms = norms(updates, set)?;
        let (mut moments, mut steps) = (Vec::new(), Vec::new());
        for (update, norm) in updates.iter_mut().zip(norms) {
            let Update { rule, grad, factor, weight, noise, copy, state: [m, v] } =
                update.reborrow();
            let Some([v]) = slice_mut::<f32>(v) else { return Err(cpu::unlike()) };
            let new = rule.second_moment(f64::from(*v), norm) as f32;
            moments.push((v, new));
            let rule = Step { rule, denominator: new * rule.root_scale + rule.eps };
            let state = std::array::from_mut(m);
            steps.push(Update { rule, grad, factor, weight, noise, copy, state });
        }
        cpu::update(&mut steps, set)?;
        moments.into_iter().for_each(|(v, new)| *v = new);
        Ok(())
    }

    fn second_moment(&self, v: f64, norm: f64) -> f64 {
        let blend = |v: f64, norm: f64| self.beta2 * v + (1.0 - self.beta2) * norm;
        match self.norm {
            _ if self.first => norm,
            NormType::L2 => blend(v * v, norm * norm).sqrt(),
            NormType::Max => blend(v, norm),
        }
    }

    /// As tensor operations.
    pub(super) fn tensors(updates: &mut [Update<'_, Self, 2>]) -> Result<(), TchError> {
        updates.iter_mut().try_for_each(Self::tensor)
    }

    fn tensor(update: &mut Update<'_, Self, 2>) -> Result<(), TchError> {
        let times = |tensor: &Tensor, factor: f32| tensor.f_mul_scalar(f64::from(factor));
        let rule = update.rule;
        let grad = tensor_ops::scale(update.grad, update.factor)?;
        let weight = update.weight.f_to_kind(Kind::Float)?;
        let [m, v] = &mut *update.state;
        v.f_copy_(&rule.second_moment_tensor(v, &grad)?)?;
        let d = times(v, rule.root_scale)?.f_add_scalar(f64::from(rule.eps))?;
        let g = match rule.inside {
            true => grad.f_div(&d)?.f_add(&times(&weight, rule.l2)?)?,
            false => grad,
        };
        let _ = m.f_mul_scalar_(f64::from(rule.beta1))?.f_add_(&times(&g, rule.fresh)?)?;
        let new = match rule.inside {
            true => weight.f_sub(&times(m, rule.step_size)?)?,
            false => times(&weight, rule.keep)?.f_sub(&times(&m.f_div(&d)?, rule.step_size)?)?,
        };
        tensor_ops::store(&new, update)
    }

    /// Blends norms, not their squares, which may overflow FP32.
    fn second_moment_tensor(&self, v: &Tensor, grad: &Tensor) -> Result<Tensor, TchError> {
        let (old, fresh) = (self.beta2, 1.0 - self.beta2);
        let norm = match self.norm {
            NormType::L2 => tensor_ops::norm(grad)?,
            NormType::Max => tensor_ops::largest(grad)?,
        };
        match self.norm {
            _ if self.first => Ok(norm),
            NormType::L2 => v.f_mul_scalar(old.sqrt())?.f_hypot(&norm.f_mul_scalar(fresh.sqrt())?),
            NormType::Max => v.f_mul_scalar(old)?.f_add(&norm.f_mul_scalar(fresh)?),
        }
    }
}

/// The norms of the gradients on the CPU, each as its rule has it.
fn norms(
    updates: &[Update<'_, NovoGradRule, 2>],
    set: InstructionSet,
) -> Result<Vec<f64>, TchError> {
    let grads =
        |norm| updates.iter().map(move |update| (update.rule.norm == norm).then_some(update.grad));
    let squares = cpu::squared_norms(grads(NormType::L2), 1.0, set)?;
    let largest = cpu::largest(grads(NormType::Max), 1.0, set)?;
    // One of the two is zero.
    let norms = squares.iter().zip(largest).map(|(squares, largest)| squares.sqrt() + largest);
    Ok(norms.zip(updates).map(|(norm, update)| norm * f64::from(update.factor)).collect())
}

/// The rule for the elements of one tensor, whose `v` is known.
#[derive(Debug, Clone, Copy)]
struct Step {
    rule: NovoGradRule,
    denominator: f32,
}

impl ElementRule<1> for Step {
    #[inline(always)]
    fn element(&self, grad: f32, weight: f32, [m]: [f32; 1]) -> (f32, [f32; 1]) {
        let Self { rule, denominator: d } = self;
        if rule.inside {
            let m = rule.beta1 * m + rule.fresh * (grad / d + rule.l2 * weight);
            (weight - rule.step_size * m, [m])
        } else {
            let m = rule.beta1 * m + rule.fresh * grad;
            (rule.keep * weight - rule.step_size * (m / d), [m])
        }
    }
}
