//! Lamb: Adam with steps whose length goes by that of a tensor's weights.

use tch::{Device, Kind, TchError, Tensor};

use super::{
    Update,
    cpu::{self, InstructionSet},
    rule::ElementRule,
    tensor_ops,
};

/// `m = β₁m + fresh₁·g; v = β₂v + fresh₂·g²; u = unbias·m / (root_scale·√v + ε) + decay·w;
/// w -= lr·r·u`, with `g = g / max(1, ‖all gradients‖ / max_grad_norm) + l2·w` before. Where `trust`
/// is true, `r = ‖w‖ / ‖u‖` if neither is zero, else 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LambRule {
    pub(crate) max_grad_norm: Option<f64>,
    pub(crate) beta1: f32,
    pub(crate) fresh1: f32,
    pub(crate) beta2: f32,
    pub(crate) fresh2: f32,
    pub(crate) unbias: f32,
    pub(crate) root_scale: f32,
    pub(crate) eps: f32,
    pub(crate) l2: f32,
    pub(crate) decay: f32,
    pub(crate) lr: f64,
    pub(crate) trust: bool,
}

impl LambRule {
    /// Applies the rules; the state is `m` and `v`.
    pub(crate) fn update(updates: &mut [Update<'_, Self, 2>]) -> Result<(), TchError> {
        let _no_grad = tch::no_grad_guard();
        match updates.iter().all(|update| update.weight.device() == Device::Cpu) {
            true => Self::loops(updates, InstructionSet::chosen()),
            false => Self::tensors(updates),
        }
    }

    /// On the CPU, in two passes: `u` is computed twice rather than kept.
    pub(super) fn loops(
        updates: &mut [Update<'_, Self, 2>],
        set: InstructionSet,
    ) -> Result<(), TchError> {
        let grads = updates.iter().map(|update| Some(update.grad));
        let squares = cpu::squared_norms(grads, 1.0, set)?;
        let scaled = squares.iter().zip(&*updates);
        let scaled = scaled.map(|(squares, update)| squares * f64::from(update.factor).powi(2));
        let norm = scaled.sum::<f64>().sqrt();
        for update in &mut *updates {
            update.factor = (f64::from(update.factor) / update.rule.clip(norm)) as f32;
        }
        let norms = cpu::first_pass(updates, set)?;
        let mut steps = Vec::with_capacity(updates.len());
        for (update, [of_weight, of_direction]) in updates.iter_mut().zip(norms) {
            let rule = update.rule;
            let known = rule.trust && of_weight > 0.0 && of_direction > 0.0;
            let ratio = if known { of_weight / of_direction } else { 1.0 };
            let rule = Step { rule, step_size: (rule.lr * ratio) as f32 };
            let Update { weight, noise, copy, state: [m, v], .. } = update.reborrow();
            let state = std::array::from_mut(v);
            steps.push(Update { rule, grad: m, factor: 1.0, weight, noise, copy, state });
        }
        cpu::update(&mut steps, set)
    }

    fn clip(&self, norm: f64) -> f64 {
        self.max_grad_norm.map_or(1.0, |limit| (norm / limit).max(1.0))
    }

    /// The new moments of an element.
    #[inline(always)]
    pub(super) fn moments(&self, grad: f32, weight: f32, [m, v]: [f32; 2]) -> [f32; 2] {
        let g = grad + self.l2 * weight;
        [self.beta1 * m + self.fresh1 * g, self.beta2 * v + self.fresh2 * (g * g)]
    }

    /// Where an element goes.
    #[inline(always)]
    pub(super) fn direction(&self, weight: f32, [m, v]: [f32; 2]) -> f32 {
        self.unbias * m / (v.sqrt() * self.root_scale + self.eps) + self.decay * weight
    }

    /// As tensor operations. All numbers stay on the device of the first gradient.
    pub(super) fn tensors(updates: &mut [Update<'_, Self, 2>]) -> Result<(), TchError> {
        let Some(first) = updates.first() else { return Ok(()) };
        let device = first.grad.device();
        let norm = |update: &Update<'_, Self, 2>| {
            let norm = tensor_ops::norm(&tensor_ops::scale(update.grad, update.factor)?)?;
            norm.f_to_device(device)
        };
        let norms = updates.iter().map(norm).collect::<Result<Vec<_>, _>>()?;
        let norm = tensor_ops::norm(&Tensor::f_stack(&norms, 0)?)?;
        updates.iter_mut().try_for_each(|update| Self::tensor(update, &norm))
    }

    fn tensor(update: &mut Update<'_, Self, 2>, norm: &Tensor) -> Result<(), TchError> {
        let times = |tensor: &Tensor, factor: f32| tensor.f_mul_scalar(f64::from(factor));
        let rule = update.rule;
        let mut grad = tensor_ops::scale(update.grad, update.factor)?;
        if let Some(limit) = rule.max_grad_norm {
            let clip = norm.f_div_scalar(limit)?.f_clamp_min(1.0)?;
            grad = grad.f_div(&clip.f_to_device(grad.device())?)?;
        }
        let weight = update.weight.f_to_kind(Kind::Float)?;
        let g = grad.f_add(&times(&weight, rule.l2)?)?;
        let square = g.f_mul(&g)?;
        let [m, v] = &mut *update.state;
        let _ = m.f_mul_scalar_(f64::from(rule.beta1))?.f_add_(&times(&g, rule.fresh1)?)?;
        let _ = v.f_mul_scalar_(f64::from(rule.beta2))?.f_add_(&times(&square, rule.fresh2)?)?;
        let denominator =
            times(&v.f_sqrt()?, rule.root_scale)?.f_add_scalar(f64::from(rule.eps))?;
        let direction = times(m, rule.unbias)?.f_div(&denominator)?;
        let direction = direction.f_add(&times(&weight, rule.decay)?)?;
        let mut step = direction.f_mul_scalar(rule.lr)?;
        if rule.trust {
            let norms = [tensor_ops::norm(&weight)?, tensor_ops::norm(&direction)?];
            let unknown = norms[0].f_minimum(&norms[1])?.f_eq(0.0)?;
            let ratio = norms[0].f_div(&norms[1])?.f_masked_fill(&unknown, 1.0)?;
            step = step.f_mul(&ratio)?;
        }
        tensor_ops::store(&weight.f_sub(&step)?, update)
    }
}

/// The second pass over a tensor, whose moments are new and whose step size is known. In place of a
/// gradient it reads `m`.
#[derive(Debug, Clone, Copy)]
struct Step {
    rule: LambRule,
    step_size: f32,
}

impl ElementRule<1> for Step {
    #[inline(always)]
    fn element(&self, m: f32, weight: f32, [v]: [f32; 1]) -> (f32, [f32; 1]) {
        (weight - self.step_size * self.rule.direction(weight, [m, v]), [v])
    }
}
