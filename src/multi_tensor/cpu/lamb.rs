//! The first of Lamb's two passes.

use tch::TchError;

use super::{
    BLOCK, CHUNK, InstructionSet, blocks, for_each,
    norm::Lanes,
    simd::{Instructions, Loop},
    values::{Dense, Values, unlike},
};
use crate::{
    libtorch::slice_mut,
    multi_tensor::{LambRule, Update},
};

/// Updates the moments, and returns the norms of each tensor's weights and of its directions.
pub(in crate::multi_tensor) fn first_pass(
    updates: &mut [Update<'_, LambRule, 2>],
    set: InstructionSet,
) -> Result<Vec<[f64; 2]>, TchError> {
    let mut dense = Vec::with_capacity(updates.len());
    for update in updates {
        let Update { rule, grad, factor, weight, state, .. } = update.reborrow();
        dense.push((rule, factor, Dense::of(grad)?, Dense::of(weight)?, state));
    }
    let tensors = dense.len();
    let mut chunks = Vec::with_capacity(tensors);
    let mut elements = 0;
    for (tensor, (rule, factor, grad, weight, state)) in dense.iter_mut().enumerate() {
        let (mut grad, mut weight) = (grad.values()?, weight.values()?);
        let [m, v] = state.each_mut().map(|state| slice_mut::<f32>(state).unwrap_or_default());
        let len = grad.len();
        if [weight.len(), m.len(), v.len()] != [len; 3] {
            return Err(unlike());
        }
        elements += len;
        for (m, v) in m.chunks_mut(CHUNK).zip(v.chunks_mut(CHUNK)) {
            let grad = grad.take(m.len()).ok_or_else(unlike)?;
            let weight = weight.take(m.len()).ok_or_else(unlike)?;
            let (rule, factor, state) = (*rule, *factor, [m, v]);
            chunks.push(Chunk { tensor, rule, factor, grad, weight, state, squares: [0.0; 2] });
        }
    }
    for_each(&mut chunks, elements, |chunk| set.run(chunk));
    let mut squares = vec![[0.0; 2]; tensors];
    for chunk in &chunks {
        let [weight, direction] = &mut squares[chunk.tensor];
        *weight += chunk.squares[0];
        *direction += chunk.squares[1];
    }
    Ok(squares.into_iter().map(|squares| squares.map(f64::sqrt)).collect())
}

/// A part of a tensor.
struct Chunk<'a> {
    tensor: usize,
    rule: LambRule,
    factor: f32,
    grad: Values<'a>,
    weight: Values<'a>,
    state: [&'a mut [f32]; 2],
    /// The sums of the squares of weights and of directions.
    squares: [f64; 2],
}

impl Loop for &mut Chunk<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Chunk { rule, factor, grad, weight, state: [m, v], squares, .. } = self;
        let (mut grads, mut weights) = ([0.0; BLOCK], [0.0; BLOCK]);
        let [mut of_weight, mut of_direction] = [Lanes::default(), Lanes::default()];
        for range in blocks(grad.len()) {
            let len = range.len();
            let (grads, weights) = (&mut grads[..len], &mut weights[..len]);
            grad.load::<I>(range.start, grads);
            weight.load::<I>(range.start, weights);
            of_weight.add(weights, 1.0);
            advance(*rule, grads, *factor, weights, &mut m[range.clone()], &mut v[range]);
            of_direction.add(grads, 1.0);
        }
        *squares = [of_weight.sum(), of_direction.sum()];
    }
}

/// Makes the moments new, and puts the directions in the place of the gradients.
#[inline(always)]
fn advance(
    rule: LambRule,
    grads: &mut [f32],
    factor: f32,
    weights: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    let len = grads.len();
    let (weights, m, v) = (&weights[..len], &mut m[..len], &mut v[..len]);
    for i in 0..len {
        [m[i], v[i]] = rule.moments(grads[i] * factor, weights[i], [m[i], v[i]]);
        grads[i] = rule.direction(weights[i], [m[i], v[i]]);
    }
}
