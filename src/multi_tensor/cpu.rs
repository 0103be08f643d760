//! The operations on the CPU.
//!
//! Tensors that are not dense are worked on through a dense copy, so that any layout gives the
//! same result.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use tch::{Device, Kind, TchError, Tensor};

use super::{Check, NonFinite, Rule, Update};
use crate::libtorch::{slice, slice_mut};

/// Elements converted to FP32 at a time: three such buffers stay in the first-level cache.
const BLOCK: usize = 1024;
/// Elements whose squares are summed on their own, whatever the number of threads.
const CHUNK: usize = 65_536;
/// Sums kept side by side within a chunk.
const LANES: usize = 8;

pub(super) fn check(grads: &[Option<Tensor>], factor: f32) -> Result<Check, TchError> {
    let mut found = Check::default();
    for (index, grad) in grads.iter().enumerate() {
        let Some(grad) = grad else { continue };
        let grad = dense(grad)?;
        let squares = match values(&grad)? {
            Values::F32(v) => sum_of_squares(v, factor),
            Values::F16(v) => sum_of_squares(v, factor),
            Values::Bf16(v) => sum_of_squares(v, factor),
        };
        found.squared_norm += squares;
        if !squares.is_finite() && found.non_finite.is_none() {
            let kind = if squares.is_nan() { NonFinite::NaN } else { NonFinite::Inf };
            found.non_finite = Some((index, kind));
        }
    }
    Ok(found)
}

pub(super) fn update<R: Rule<K>, const K: usize>(
    update: &mut Update<'_, R, K>,
) -> Result<(), TchError> {
    let grad = dense(update.grad)?;
    let mut weight = dense(update.weight)?;
    apply(update.rule, values(&grad)?, update.factor, &mut weight, update.state)?;
    if !same_memory(&weight, update.weight) {
        update.weight.f_copy_(&weight)?;
    }
    match &mut update.copy {
        Some(copy) => copy.f_copy_(&weight),
        None => Ok(()),
    }
}

fn apply<R: Rule<K>, const K: usize>(
    rule: R,
    grad: Values<'_>,
    factor: f32,
    weight: &mut Tensor,
    state: &mut [Tensor; K],
) -> Result<(), TchError> {
    let mut states = Vec::with_capacity(K);
    for tensor in state.iter_mut() {
        states.push(slice_mut::<f32>(tensor).ok_or_else(|| unreadable("optimizer state"))?);
    }
    match weight.kind() {
        Kind::Float => blocks(rule, grad, factor, slice_mut::<f32>(weight), states),
        Kind::Half => blocks(rule, grad, factor, slice_mut::<f16>(weight), states),
        Kind::BFloat16 => blocks(rule, grad, factor, slice_mut::<bf16>(weight), states),
        kind => Err(TchError::Kind(format!("weights of {kind:?} cannot be updated"))),
    }
}

fn blocks<R: Rule<K>, T: Storage, const K: usize>(
    rule: R,
    grad: Values<'_>,
    factor: f32,
    weight: Option<&mut [T]>,
    mut states: Vec<&mut [f32]>,
) -> Result<(), TchError> {
    let weight = weight.ok_or_else(|| unreadable("weight"))?;
    if grad.len() != weight.len() || states.iter().any(|state| state.len() != weight.len()) {
        return Err(TchError::Shape("gradient, weight and state differ in size".to_owned()));
    }
    let (mut g, mut w) = ([0.0; BLOCK], [0.0; BLOCK]);
    for start in (0..weight.len()).step_by(BLOCK) {
        let end = (start + BLOCK).min(weight.len());
        let (g, w) = (&mut g[..end - start], &mut w[..end - start]);
        grad.load(start, g);
        T::load(&weight[start..end], w);
        let mut parts = states.iter_mut().map(|state| &mut state[start..end]);
        let mut parts: [&mut [f32]; K] =
            std::array::from_fn(|_| parts.next().unwrap_or_default());
        for (i, (g, w)) in g.iter().zip(w.iter_mut()).enumerate() {
            *w = rule.element(g * factor, *w, parts.each_mut().map(|part| &mut part[i]));
        }
        T::store(w, &mut weight[start..end]);
    }
    Ok(())
}

/// Sums squares in FP64: those of FP32 values are exact there and cannot overflow.
fn sum_of_squares<T: Storage>(values: &[T], factor: f32) -> f64 {
    let mut total = 0.0;
    let mut block = [0.0; BLOCK];
    for chunk in values.chunks(CHUNK) {
        let mut lanes = [0.0; LANES];
        for part in chunk.chunks(BLOCK) {
            let block = &mut block[..part.len()];
            T::load(part, block);
            for group in block.chunks(LANES) {
                for (lane, value) in lanes.iter_mut().zip(group) {
                    let value = f64::from(value * factor);
                    *lane += value * value;
                }
            }
        }
        total += lanes.iter().sum::<f64>();
    }
    total
}

/// A dense, aligned tensor with the same values: the tensor itself where it is one.
fn dense(tensor: &Tensor) -> Result<Tensor, TchError> {
    if values(tensor).is_ok() {
        return Ok(tensor.shallow_clone());
    }
    let mut copy = Tensor::f_empty(tensor.size(), (tensor.kind(), Device::Cpu))?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

fn same_memory(a: &Tensor, b: &Tensor) -> bool {
    a.data_ptr() == b.data_ptr()
}

fn values(tensor: &Tensor) -> Result<Values<'_>, TchError> {
    let values = match tensor.kind() {
        Kind::Float => slice(tensor).map(Values::F32),
        Kind::Half => slice(tensor).map(Values::F16),
        Kind::BFloat16 => slice(tensor).map(Values::Bf16),
        kind => return Err(TchError::Kind(format!("a gradient is {kind:?}, not f32 or 16 bits"))),
    };
    values.ok_or_else(|| unreadable("gradient"))
}

fn unreadable(what: &str) -> TchError {
    TchError::Shape(format!("the {what} is not a dense CPU tensor"))
}

/// The elements of a gradient.
#[derive(Clone, Copy)]
enum Values<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl Values<'_> {
    fn len(self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::F16(v) => v.len(),
            Self::Bf16(v) => v.len(),
        }
    }

    fn load(self, start: usize, into: &mut [f32]) {
        let range = start..start + into.len();
        match self {
            Self::F32(v) => f32::load(&v[range], into),
            Self::F16(v) => f16::load(&v[range], into),
            Self::Bf16(v) => bf16::load(&v[range], into),
        }
    }
}

/// A type that weights and gradients are stored in.
trait Storage: Copy {
    fn load(from: &[Self], into: &mut [f32]);
    fn store(from: &[f32], into: &mut [Self]);
}

impl Storage for f32 {
    fn load(from: &[Self], into: &mut [f32]) {
        into.copy_from_slice(from);
    }
    fn store(from: &[f32], into: &mut [Self]) {
        into.copy_from_slice(from);
    }
}

impl Storage for f16 {
    fn load(from: &[Self], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }
    fn store(from: &[f32], into: &mut [Self]) {
        into.convert_from_f32_slice(from);
    }
}

impl Storage for bf16 {
    fn load(from: &[Self], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }
    fn store(from: &[f32], into: &mut [Self]) {
        into.convert_from_f32_slice(from);
    }
}
