//! New weights: an optimizer's rule, and rounding.

use half::bf16;
use tch::{Kind, TchError, Tensor};

use super::{
    BLOCK, CHUNK, InstructionSet, blocks, for_each,
    simd::Loop,
    values::{Dense, Values, ValuesMut, unlike},
};
use crate::{
    libtorch::slice_mut,
    multi_tensor::{Noise, Rule, Update, noise},
};

/// Applies a rule to each tensor in one pass: gradient, weight and state are read once, weight,
/// state and 16-bit copy written once.
pub(in crate::multi_tensor) fn update<R: Rule<K>, const K: usize>(
    updates: &mut [Update<'_, R, K>],
    set: InstructionSet,
) -> Result<(), TchError> {
    let stands_in = |tensor: &Tensor| match Values::of(tensor) {
        Ok(_) => Ok(None),
        Err(_) => Dense::copy(tensor).map(Some),
    };
    let mut prepared = Vec::with_capacity(updates.len());
    for update in &*updates {
        let copy = update.copy.as_ref().map(|copy| stands_in(copy)).transpose()?.flatten();
        let (grad, weight) = (Dense::of(update.grad)?, stands_in(update.weight)?);
        prepared.push(Prepared { grad, weight, copy });
    }
    let mut chunks = Vec::with_capacity(updates.len());
    let mut elements = 0;
    for (update, Prepared { grad, weight, copy }) in updates.iter_mut().zip(&mut prepared) {
        let mut left = Chunk {
            rule: update.rule,
            factor: update.factor,
            grad: grad.values()?,
            weight: ValuesMut::of(weight.as_mut().unwrap_or(update.weight))?,
            state: update.state.each_mut().map(|state| slice_mut::<f32>(state).unwrap_or_default()),
            copy: match &mut update.copy {
                Some(own) => Some(ValuesMut::of(copy.as_mut().unwrap_or(own))?),
                None => None,
            },
            noise: update.noise.map(|noise| (noise, 0)),
        };
        if !left.fits() {
            return Err(unlike());
        }
        elements += left.grad.len();
        while left.grad.len() > CHUNK {
            chunks.push(left.take(CHUNK).ok_or_else(unlike)?);
        }
        chunks.push(left);
    }
    for_each(&mut chunks, elements, |chunk| set.run(chunk));
    drop(chunks);
    for (update, Prepared { weight, copy, .. }) in updates.iter_mut().zip(prepared) {
        if let Some(new) = weight {
            update.weight.f_copy_(&new)?;
        }
        if let (Some(copy), Some(new)) = (&mut update.copy, copy) {
            copy.f_copy_(&new)?;
        }
    }
    Ok(())
}

/// Dense tensors in place of those of an update that are not.
struct Prepared<'a> {
    grad: Dense<'a>,
    weight: Option<Tensor>,
    copy: Option<Tensor>,
}

/// A part of a tensor that is updated.
#[derive(Debug)]
struct Chunk<'a, R, const K: usize> {
    rule: R,
    factor: f32,
    grad: Values<'a>,
    weight: ValuesMut<'a>,
    state: [&'a mut [f32]; K],
    copy: Option<ValuesMut<'a>>,
    /// The random bits, and the number of their first block.
    noise: Option<(Noise, u32)>,
}

impl<R: Rule<K>, const K: usize> Chunk<'_, R, K> {
    /// Whether all parts have the same number of elements.
    fn fits(&self) -> bool {
        let len = self.grad.len();
        self.weight.len() == len
            && self.state.iter().all(|state| state.len() == len)
            && self.copy.as_ref().is_none_or(|copy| copy.len() == len)
    }

    /// Takes the first `len` elements away, a multiple of a block of random bits.
    fn take(&mut self, len: usize) -> Option<Self> {
        let mut state = self.state.each_mut().map(|state| state.split_off_mut(..len));
        let taken = Chunk {
            rule: self.rule,
            factor: self.factor,
            grad: self.grad.take(len)?,
            weight: self.weight.take(len)?,
            state: std::array::from_fn(|k| state[k].take().unwrap_or_default()),
            copy: self.copy.as_mut().and_then(|copy| copy.take(len)),
            noise: self.noise,
        };
        if let Some((_, first)) = &mut self.noise {
            *first += (len / noise::BLOCK) as u32;
        }
        Some(taken)
    }
}

impl<R: Rule<K>, const K: usize> Loop for &mut Chunk<'_, R, K> {
    #[inline(always)]
    fn run(self) {
        let Chunk { rule, factor, grad, weight, state, copy, noise } = self;
        let (mut grads, mut weights) = ([0.0; BLOCK], [0.0; BLOCK]);
        for range in blocks(grad.len()) {
            let grads = &mut grads[..range.len()];
            grad.load(range.start, grads);
            let state = state.each_mut().map(|state| &mut state[range.clone()]);
            let new = match &mut *weight {
                ValuesMut::F32(weight) => {
                    let weight = &mut weight[range.clone()];
                    apply(*rule, grads, *factor, weight, state);
                    weight
                }
                low => {
                    let weights = &mut weights[..range.len()];
                    low.as_ref().load(range.start, weights);
                    apply(*rule, grads, *factor, weights, state);
                    match (low, *noise) {
                        (ValuesMut::Bf16(low), Some((noise, first))) => {
                            let first = first + (range.start / noise::BLOCK) as u32;
                            round_block(weights, &mut low[range.clone()], noise, first);
                        }
                        (low, _) => low.store(range.start, weights),
                    }
                    weights
                }
            };
            if let Some(copy) = copy {
                copy.store(range.start, new);
            }
        }
    }
}

#[inline(always)]
fn apply<R: Rule<K>, const K: usize>(
    rule: R,
    grad: &[f32],
    factor: f32,
    weight: &mut [f32],
    state: [&mut [f32]; K],
) {
    let len = grad.len();
    let (weight, state) = (&mut weight[..len], state.map(|state| &mut state[..len]));
    for i in 0..len {
        let old = std::array::from_fn(|k| state[k][i]);
        let (new, states) = rule.element(grad[i] * factor, weight[i], old);
        weight[i] = new;
        for k in 0..K {
            state[k][i] = states[k];
        }
    }
}

/// Rounds FP32 values to bf16 stochastically.
pub(in crate::multi_tensor) fn round(
    values: &Tensor,
    weight: &mut Tensor,
    noise: Noise,
) -> Result<(), TchError> {
    let Some(into) = slice_mut::<bf16>(weight) else {
        let mut rounded = Tensor::f_empty(weight.size(), (Kind::BFloat16, weight.device()))?;
        round(values, &mut rounded, noise)?;
        return weight.f_copy_(&rounded);
    };
    let values = Dense::of(values)?;
    match values.values()? {
        Values::F32(values) if values.len() == into.len() => round_block(values, into, noise, 0),
        _ => return Err(unlike()),
    }
    Ok(())
}

/// Rounds values that begin at block `first` of the random bits.
#[inline(always)]
fn round_block(values: &[f32], into: &mut [bf16], noise: Noise, first: u32) {
    let blocks = into.chunks_mut(noise::BLOCK).zip(values.chunks(noise::BLOCK));
    for (block, (into, values)) in (first..).zip(blocks) {
        let words = noise.block(block);
        for (i, (into, value)) in into.iter_mut().zip(values).enumerate() {
            let bits = (words[i / 2] >> (16 * (i % 2))) & 0xFFFF;
            *into = match value.is_nan() {
                true => bf16::NAN,
                false => bf16::from_bits(((value.to_bits() + bits) >> 16) as u16),
            };
        }
    }
}
