//! New weights: an optimizer's rule, and rounding.

use half::bf16;
use tch::{Kind, TchError, Tensor};

use super::{
    BLOCK, CHUNK, InstructionSet, blocks, for_each,
    simd::{Instructions, Loop},
    values::{Dense, Values, ValuesMut, unlike},
};
use crate::{
    libtorch::slice_mut,
    multi_tensor::{ElementRule, Noise, Update, noise},
};

/// Applies a rule to each tensor in one pass: gradient, weight and state are read once, weight,
/// state and 16-bit copy written once.
pub(in crate::multi_tensor) fn update<R: ElementRule<K>, const K: usize>(
    updates: &mut [Update<'_, R, K>],
    set: InstructionSet,
) -> Result<(), TchError> {
    let mut chunks = Vec::with_capacity(updates.len());
    let mut indirect = Vec::new();
    for update in updates {
        match StandIns::of(update)? {
            None => Chunk::whole(update.reborrow())?.cut(&mut chunks),
            Some(stand_ins) => indirect.push((update, stand_ins)),
        }
    }
    for (update, stand_ins) in &mut indirect {
        Chunk::whole(stand_ins.put_into(update.reborrow()))?.cut(&mut chunks);
    }
    let elements = chunks.iter().map(|chunk| chunk.grad.len()).sum();
    for_each(&mut chunks, elements, |chunk| set.run(chunk));
    drop(chunks);
    indirect.into_iter().try_for_each(|(update, stand_ins)| stand_ins.write_back(update))
}

/// Dense tensors in place of those of an update that are not.
struct StandIns {
    grad: Option<Tensor>,
    weight: Option<Tensor>,
    copy: Option<Tensor>,
}

impl StandIns {
    /// `None` if all are dense.
    fn of<R, const K: usize>(update: &Update<'_, R, K>) -> Result<Option<Self>, TchError> {
        let copy = update.copy.as_ref().map(|copy| stand_in(copy)).transpose()?.flatten();
        let (grad, weight) = (stand_in(update.grad)?, stand_in(update.weight)?);
        let any = grad.is_some() || weight.is_some() || copy.is_some();
        Ok(any.then_some(Self { grad, weight, copy }))
    }

    fn put_into<'a, R, const K: usize>(&'a mut self, update: Update<'a, R, K>) -> Update<'a, R, K> {
        Update {
            grad: self.grad.as_ref().unwrap_or(update.grad),
            weight: self.weight.as_mut().unwrap_or(update.weight),
            copy: update.copy.map(|own| self.copy.as_mut().unwrap_or(own)),
            ..update
        }
    }

    fn write_back<R, const K: usize>(self, update: &mut Update<'_, R, K>) -> Result<(), TchError> {
        if let Some(new) = self.weight {
            update.weight.f_copy_(&new)?;
        }
        match (&mut update.copy, self.copy) {
            (Some(copy), Some(new)) => copy.f_copy_(&new),
            _ => Ok(()),
        }
    }
}

fn stand_in(tensor: &Tensor) -> Result<Option<Tensor>, TchError> {
    match Values::of(tensor) {
        Ok(_) => Ok(None),
        Err(_) => Dense::copy(tensor).map(Some),
    }
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

impl<'a, R: ElementRule<K>, const K: usize> Chunk<'a, R, K> {
    /// All of a tensor.
    fn whole(update: Update<'a, R, K>) -> Result<Self, TchError> {
        let Update { rule, grad, factor, weight, noise, copy, state } = update;
        let grad = Values::of(grad)?;
        let weight = ValuesMut::of(weight)?;
        let copy = copy.map(ValuesMut::of).transpose()?;
        let state = state.each_mut().map(|state| slice_mut::<f32>(state).unwrap_or_default());
        let len = grad.len();
        let fits = weight.len() == len
            && state.iter().all(|state| state.len() == len)
            && copy.as_ref().is_none_or(|copy| copy.len() == len);
        match fits {
            true => {
                Ok(Self { rule, factor, grad, weight, state, copy, noise: noise.map(|n| (n, 0)) })
            }
            false => Err(unlike()),
        }
    }

    /// Adds its parts to `chunks`.
    fn cut(mut self, chunks: &mut Vec<Self>) {
        while self.grad.len() > CHUNK
            && let Some(first) = self.take(CHUNK)
        {
            chunks.push(first);
        }
        chunks.push(self);
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

impl<R: ElementRule<K>, const K: usize> Loop for &mut Chunk<'_, R, K> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Chunk { rule, factor, grad, weight, state, copy, noise } = self;
        let (mut grads, mut weights) = ([0.0; BLOCK], [0.0; BLOCK]);
        for range in blocks(grad.len()) {
            let grads = &mut grads[..range.len()];
            grad.load::<I>(range.start, grads);
            let state = state.each_mut().map(|state| &mut state[range.clone()]);
            let new = match &mut *weight {
                ValuesMut::F32(weight) => {
                    let weight = &mut weight[range.clone()];
                    apply(*rule, grads, *factor, weight, state);
                    weight
                }
                low => {
                    let weights = &mut weights[..range.len()];
                    low.as_ref().load::<I>(range.start, weights);
                    apply(*rule, grads, *factor, weights, state);
                    match (low, *noise) {
                        (ValuesMut::Bf16(low), Some((noise, first))) => {
                            let first = first + (range.start / noise::BLOCK) as u32;
                            round_block(weights, &mut low[range.clone()], noise, first);
                        }
                        (low, _) => low.store::<I>(range.start, weights),
                    }
                    weights
                }
            };
            if let Some(copy) = copy {
                copy.store::<I>(range.start, new);
            }
        }
    }
}

#[inline(always)]
fn apply<R: ElementRule<K>, const K: usize>(
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
