//! The operations as plain tch operations, for every device.

use tch::{Device, Kind, TchError, Tensor};

use super::{Check, Noise, NonFinite, Rule, Update};

pub(super) fn check(grads: &[Option<Tensor>], factor: f32) -> Result<Check, TchError> {
    let _no_grad = tch::no_grad_guard();
    let mut indices = Vec::new();
    let mut figures = Vec::new();
    for (index, grad) in grads.iter().enumerate() {
        let Some(grad) = grad.as_ref().filter(|grad| grad.numel() > 0) else { continue };
        let scaled = scale(grad, factor)?;
        indices.push(index);
        figures.extend(parts_of_norm(&scaled)?);
    }
    if figures.is_empty() {
        return Ok(Check::default());
    }
    let figures = Tensor::f_stack(&figures, 0)?.f_to_device(Device::Cpu)?;
    let figures = Vec::<f32>::try_from(figures)?;
    let mut found = Check::default();
    for (index, figures) in indices.into_iter().zip(figures.chunks_exact(3)) {
        let [largest, safe, norm] = [figures[0], figures[1], figures[2]].map(f64::from);
        found.squared_norm += (safe * norm).powi(2);
        if !largest.is_finite() {
            found.squared_norm = largest;
            let kind = if largest.is_nan() { NonFinite::NaN } else { NonFinite::Inf };
            found.non_finite = found.non_finite.or(Some((index, kind)));
        }
    }
    Ok(found)
}

/// Norms are taken of `x / max|x|`: squares of large finite values would overflow FP32. The second
/// of the figures is what was divided by, the third the norm of that.
fn parts_of_norm(tensor: &Tensor) -> Result<[Tensor; 3], TchError> {
    let largest = largest(tensor)?;
    let safe = largest.f_clamp_min(f64::from(f32::MIN_POSITIVE))?;
    let norm = tensor.f_div(&safe)?.f_norm_scalaropt_dtype(2.0, Kind::Float)?;
    Ok([largest, safe, norm])
}

/// The L2 norm of an FP32 tensor, as a tensor of its device.
pub(super) fn norm(tensor: &Tensor) -> Result<Tensor, TchError> {
    let [_, safe, norm] = parts_of_norm(tensor)?;
    safe.f_mul(&norm)
}

/// The largest magnitude in a tensor, as a tensor of its device.
pub(super) fn largest(tensor: &Tensor) -> Result<Tensor, TchError> {
    match tensor.numel() {
        0 => Tensor::f_zeros([0i64; 0], (Kind::Float, tensor.device())),
        _ => tensor.f_abs()?.f_max(),
    }
}

pub(super) fn scale(grad: &Tensor, factor: f32) -> Result<Tensor, TchError> {
    let grad = grad.f_to_kind(Kind::Float)?;
    match factor {
        1.0 => Ok(grad),
        _ => grad.f_mul_scalar(f64::from(factor)),
    }
}

pub(super) fn update<R: Rule<K>, const K: usize>(
    update: &mut Update<'_, R, K>,
) -> Result<(), TchError> {
    let grad = scale(update.grad, update.factor)?;
    let weight = update.weight.f_to_kind(Kind::Float)?;
    let new = update.rule.tensor(grad, &weight, update.state)?;
    store(&new, update)
}

/// Writes the new weight, and its copy.
pub(super) fn store<R, const K: usize>(
    new: &Tensor,
    update: &mut Update<'_, R, K>,
) -> Result<(), TchError> {
    super::write(new, update.weight, update.noise)?;
    match &mut update.copy {
        Some(copy) => copy.f_copy_(update.weight),
        None => Ok(()),
    }
}

/// Rounds FP32 values to bf16 stochastically.
pub(super) fn round(values: &Tensor, weight: &mut Tensor, noise: Noise) -> Result<(), TchError> {
    let values = values.f_contiguous()?;
    let noise =
        noise.tensor(values.numel() as i64, values.device())?.f_view(values.size().as_slice())?;
    let bits = values.f_view_dtype(Kind::Int)?.f_to_kind(Kind::Int64)?;
    let rounded = bits.f_add(&noise)?.f_bitwise_right_shift_tensor_scalar(16)?;
    let rounded = rounded.f_to_kind(Kind::Int16)?.f_view_dtype(Kind::BFloat16)?;
    weight.f_copy_(&rounded.f_masked_fill(&values.f_isnan()?, f64::NAN)?)
}
