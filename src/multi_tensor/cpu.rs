//! The operations on the CPU.
//!
//! Tensors that are not dense are worked on through a dense copy, so that any layout gives the
//! same result.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use tch::{Device, Kind, TchError, Tensor};

use super::{
    Check, NonFinite, Rule, Update,
    noise::{self, Noise},
};
use crate::libtorch::{slice, slice_mut};

/// Elements converted to FP32 at a time: they stay in the first-level cache.
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
    // The weight itself where it is FP32 and dense, else a copy in FP32.
    let mut weight = dense(&update.weight.f_to_kind(Kind::Float)?)?;
    apply(update.rule, values(&grad)?, update.factor, &mut weight, update.state)?;
    if !same_memory(&weight, update.weight) {
        super::write(&weight, update.weight, update.noise)?;
    }
    match &mut update.copy {
        Some(copy) => copy.f_copy_(update.weight),
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
    let weight = slice_mut::<f32>(weight).ok_or_else(|| unreadable("weight"))?;
    let mut states = Vec::with_capacity(K);
    for tensor in state.iter_mut() {
        states.push(slice_mut::<f32>(tensor).ok_or_else(|| unreadable("optimizer state"))?);
    }
    if grad.len() != weight.len() || states.iter().any(|state| state.len() != weight.len()) {
        return Err(TchError::Shape("gradient, weight and state differ in size".to_owned()));
    }
    let mut block = [0.0; BLOCK];
    for (n, w) in weight.chunks_mut(BLOCK).enumerate() {
        let (start, len) = (n * BLOCK, w.len());
        let g = &mut block[..len];
        grad.load(start, g);
        let mut parts = states.iter_mut().map(|state| &mut state[start..start + len]);
        let parts: [&mut [f32]; K] = std::array::from_fn(|_| parts.next().unwrap_or_default());
        for i in 0..len {
            let state = std::array::from_fn(|k| parts[k][i]);
            let (weight, state) = rule.element(g[i] * factor, w[i], state);
            w[i] = weight;
            for k in 0..K {
                parts[k][i] = state[k];
            }
        }
    }
    Ok(())
}

/// Rounds FP32 values to bf16 stochastically.
pub(super) fn round(values: &Tensor, weight: &mut Tensor, noise: Noise) -> Result<(), TchError> {
    let values = dense(values)?;
    let Some(into) = slice_mut::<bf16>(weight) else {
        let mut rounded = Tensor::f_empty(weight.size(), (Kind::BFloat16, Device::Cpu))?;
        round(&values, &mut rounded, noise)?;
        return weight.f_copy_(&rounded);
    };
    let values = slice::<f32>(&values).ok_or_else(|| unreadable("new weight"))?;
    let blocks = into.chunks_mut(noise::BLOCK).zip(values.chunks(noise::BLOCK));
    for (index, (into, values)) in (0..).zip(blocks) {
        let words = noise.block(index);
        for (i, (into, value)) in into.iter_mut().zip(values).enumerate() {
            let bits = (words[i / 2] >> (16 * (i % 2))) & 0xFFFF;
            *into = match value.is_nan() {
                true => bf16::NAN,
                false => bf16::from_bits(((value.to_bits() + bits) >> 16) as u16),
            };
        }
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

/// A type that gradients are stored in.
trait Storage: Copy {
    fn load(from: &[Self], into: &mut [f32]);
}

impl Storage for f32 {
    fn load(from: &[Self], into: &mut [f32]) {
        into.copy_from_slice(from);
    }
}

impl Storage for f16 {
    fn load(from: &[Self], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }
}

/// In bit arithmetic, which the compiler turns into vector instructions.
impl Storage for bf16 {
    fn load(from: &[Self], into: &mut [f32]) {
        for (from, into) in from.iter().zip(into) {
            *into = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}
