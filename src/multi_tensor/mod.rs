//! The few operations over many tensors that a training step is made of.
//!
//! The typed API calls these and knows nothing of the device below. The CPU has loops of its own
//! (`cpu`), NVIDIA's GPUs have kernels (`cuda`); every other device runs plain tch operations
//! (`tensor_ops`), which is also the path for a GPU whose kernels cannot be used. Floating-point
//! arithmetic is FP32 without fused multiply-add, and the CPU's sums of squares are FP64, so that
//! results do not depend on the instruction set.

mod cpu;
pub(crate) mod cuda;
mod lamb;
mod noise;
mod novograd;
mod rule;
mod tensor_ops;
#[cfg(test)]
mod tests;

use tch::{Device, Kind, TchError, Tensor};

use cpu::InstructionSet;
use cuda::Kernels;
pub(crate) use cuda::Tables;
pub use cuda::{DriverError, Unavailable};
pub(crate) use lamb::LambRule;
pub(crate) use noise::Noise;
pub use novograd::NormType;
pub(crate) use novograd::NovoGradRule;
pub(crate) use rule::{ElementRule, Rule};

/// Tells which kernels of this crate a step runs on a device, such as `avx512` or
/// `sm_90, compiled by NVRTC 13.0`.
///
/// Training works without them too, by libtorch's operations, only slower.
///
/// # Errors
///
/// Why there are none.
pub fn kernels(device: Device) -> Result<String, Unavailable> {
    match (Kernels::find(device), device) {
        (Ok(kernels), _) => Ok(kernels.describe()),
        (Err(_), Device::Cpu) => Ok(InstructionSet::chosen().to_string()),
        (Err(reason), _) => Err(reason),
    }
}

/// How gradients fail to be finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NonFinite {
    /// An infinity, and no NaN in the same tensor.
    Inf,
    /// A NaN.
    NaN,
}

/// What one look at a list of gradients found.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Check {
    /// The sum of the squares of all elements.
    pub(crate) squared_norm: f64,
    /// The first tensor that is not finite, by its index in the list.
    pub(crate) non_finite: Option<(usize, NonFinite)>,
}

/// One tensor's part in [`update`].
#[derive(Debug)]
pub(crate) struct Update<'a, R, const K: usize> {
    /// The rule with its settings for this tensor.
    pub(crate) rule: R,
    /// The gradient, FP32 or 16 bits, in any layout.
    pub(crate) grad: &'a Tensor,
    /// What the gradient is multiplied by first: the inverse scale times the clip coefficient.
    pub(crate) factor: f32,
    /// What the rule updates: the master, or the model's own weight.
    pub(crate) weight: &'a mut Tensor,
    /// What a weight in bf16 is rounded with; `None` rounds to nearest.
    pub(crate) noise: Option<Noise>,
    /// The model's 16-bit weight, overwritten with the new master.
    pub(crate) copy: Option<&'a mut Tensor>,
    /// The optimizer's FP32 state.
    pub(crate) state: &'a mut [Tensor; K],
}

impl<R: Copy, const K: usize> Update<'_, R, K> {
    fn reborrow(&mut self) -> Update<'_, R, K> {
        Update {
            rule: self.rule,
            grad: self.grad,
            factor: self.factor,
            weight: self.weight,
            noise: self.noise,
            copy: self.copy.as_deref_mut(),
            state: self.state,
        }
    }
}

/// Looks for elements of `grad * factor` that are not finite, and sums their squares.
///
/// # Syncs
///
/// Once on a device that is not the CPU.
pub(crate) fn check(
    tables: &Tables,
    grads: &[Option<Tensor>],
    factor: f32,
) -> Result<Check, TchError> {
    let mut devices: Vec<_> = grads.iter().flatten().map(Tensor::device).collect();
    devices.dedup();
    match devices[..] {
        [] => Ok(Check::default()),
        [device] => match (Kernels::of(device), device) {
            (Some(kernels), _) => cuda::check(kernels, tables, grads, factor),
            (None, Device::Cpu) => cpu::check(grads, factor),
            (None, _) => tensor_ops::check(grads, factor),
        },
        _ => one_by_one(tables, grads, factor),
    }
}

/// For models on several devices.
fn one_by_one(tables: &Tables, grads: &[Option<Tensor>], factor: f32) -> Result<Check, TchError> {
    let mut found = Check::default();
    for (index, grad) in grads.iter().enumerate() {
        let check = check(tables, &[grad.as_ref().map(Tensor::shallow_clone)], factor)?;
        found.squared_norm += check.squared_norm;
        found.non_finite = found.non_finite.or(check.non_finite.map(|(_, kind)| (index, kind)));
    }
    Ok(found)
}

/// Makes `grad * factor` as a new FP32 tensor.
pub(crate) fn scale(grad: &Tensor, factor: f32) -> Result<Tensor, TchError> {
    if factor == 1.0 && grad.f_kind()? == Kind::Float {
        return Ok(grad.shallow_clone());
    }
    match (Kernels::of(grad.device()), grad.device()) {
        (Some(kernels), _) => cuda::scale(kernels, grad, factor),
        (None, Device::Cpu) => cpu::scale(grad, factor),
        (None, _) => tensor_ops::scale(grad, factor),
    }
}

/// Adds `grad * factor` to the FP32 tensors `sums`, entry by entry, and checks the sums.
///
/// An entry without a gradient stays as it is; an entry without a sum becomes the scaled gradient.
/// The check's squared norm is that of all sums that got a gradient.
///
/// # Syncs
///
/// Once on a device that is not the CPU.
pub(crate) fn accumulate(
    tables: &Tables,
    sums: &mut [Option<Tensor>],
    grads: &[Option<Tensor>],
    factor: f32,
) -> Result<Check, TchError> {
    let _no_grad = tch::no_grad_guard();
    let mut devices = grads.iter().flatten().map(Tensor::device);
    let device = devices.next().unwrap_or(Device::Cpu);
    if devices.all(|other| other == device) {
        match (Kernels::of(device), device) {
            (Some(kernels), _) => return cuda::accumulate(kernels, tables, sums, grads, factor),
            (None, Device::Cpu) => return cpu::accumulate(sums, grads, factor),
            (None, _) => {}
        }
    }
    let mut touched = Vec::with_capacity(sums.len());
    for (sum, grad) in sums.iter_mut().zip(grads) {
        let Some(grad) = grad else {
            touched.push(None);
            continue;
        };
        let scaled = scale(grad, factor)?;
        let new = match sum.take() {
            Some(mut sum) => sum.f_add_(&scaled)?,
            None => scaled,
        };
        touched.push(Some(new.shallow_clone()));
        *sum = Some(new);
    }
    check(tables, &touched, 1.0)
}

/// Applies an optimizer's rule to each tensor.
pub(crate) fn update<R: Rule<K>, const K: usize>(
    updates: &mut [Update<'_, R, K>],
) -> Result<(), TchError> {
    let _no_grad = tch::no_grad_guard();
    let on_cpu = |update: &Update<'_, R, K>| update.weight.device() == Device::Cpu;
    if updates.iter().all(on_cpu) {
        return cpu::update(updates, InstructionSet::chosen());
    }
    for update in updates {
        match on_cpu(update) {
            true => cpu::update(std::slice::from_mut(update), InstructionSet::chosen())?,
            false => tensor_ops::update(update)?,
        }
    }
    Ok(())
}

/// Writes FP32 values to a weight of any type and layout. `noise` rounds to bf16 stochastically.
pub(crate) fn write(
    values: &Tensor,
    weight: &mut Tensor,
    noise: Option<Noise>,
) -> Result<(), TchError> {
    match noise.filter(|_| weight.kind() == Kind::BFloat16) {
        None => weight.f_copy_(values),
        Some(noise) if weight.device() == Device::Cpu => cpu::round(values, weight, noise),
        Some(noise) => tensor_ops::round(values, weight, noise),
    }
}
