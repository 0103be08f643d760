//! Sums of squares, and largest magnitudes.

use tch::{TchError, Tensor};

use super::{
    BLOCK, CHUNK, InstructionSet, blocks, for_each,
    simd::{Instructions, Loop},
    values::{Dense, Values},
};
use crate::multi_tensor::{Check, NonFinite};

/// Sums kept side by side: so many additions are under way at a time.
const LANES: usize = 16;

/// See [`check`](crate::multi_tensor::check).
pub(in crate::multi_tensor) fn check(
    grads: &[Option<Tensor>],
    factor: f32,
) -> Result<Check, TchError> {
    let grads = grads.iter().map(Option::as_ref);
    Ok(Check::of(squared_norms(grads, factor, InstructionSet::chosen())?))
}

/// The sums of the squares of `grad * factor`, by tensor.
///
/// Squares are summed in FP64: those of FP32 values are exact there and cannot overflow.
pub(in crate::multi_tensor) fn squared_norms<'a>(
    grads: impl Iterator<Item = Option<&'a Tensor>>,
    factor: f32,
    set: InstructionSet,
) -> Result<Vec<f64>, TchError> {
    figures::<Lanes>(grads, factor, set)
}

/// The largest magnitudes of `grad * factor`, by tensor.
pub(in crate::multi_tensor) fn largest<'a>(
    grads: impl Iterator<Item = Option<&'a Tensor>>,
    factor: f32,
    set: InstructionSet,
) -> Result<Vec<f64>, TchError> {
    figures::<Largest>(grads, factor, set)
}

fn figures<'a, F: Figure>(
    grads: impl Iterator<Item = Option<&'a Tensor>>,
    factor: f32,
    set: InstructionSet,
) -> Result<Vec<f64>, TchError> {
    let dense = grads.map(|grad| grad.map(Dense::of).transpose());
    let dense = dense.collect::<Result<Vec<_>, _>>()?;
    let mut chunks = Vec::with_capacity(dense.len());
    let mut elements = 0;
    for (tensor, grad) in dense.iter().enumerate() {
        let Some(grad) = grad else { continue };
        let mut left = grad.values()?;
        elements += left.len();
        while let Some(values) = left.take(CHUNK.min(left.len())).filter(|part| part.len() > 0) {
            chunks.push(Chunk { tensor, values, factor, figure: F::default() });
        }
    }
    for_each(&mut chunks, elements, |chunk| set.run(chunk));
    let mut figures = vec![0.0; dense.len()];
    for chunk in &chunks {
        figures[chunk.tensor] = F::join(figures[chunk.tensor], chunk.figure.value());
    }
    Ok(figures)
}

/// A number that all elements of a tensor add to.
trait Figure: Default + Send {
    fn add(&mut self, values: &[f32], factor: f32);
    fn value(&self) -> f64;
    /// The figure of two parts.
    fn join(a: f64, b: f64) -> f64;
}

/// A part of a tensor that is looked at.
struct Chunk<'a, F> {
    tensor: usize,
    values: Values<'a>,
    factor: f32,
    figure: F,
}

impl<F: Figure> Loop for &mut Chunk<'_, F> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let mut figure = F::default();
        let mut block = [0.0; BLOCK];
        for range in blocks(self.values.len()) {
            let block = &mut block[..range.len()];
            self.values.load::<I>(range.start, block);
            figure.add(block, self.factor);
        }
        self.figure = figure;
    }
}

/// Sums of squares, element `i` in lane `i % 16`.
#[derive(Debug)]
pub(super) struct Lanes([f64; LANES]);

impl Default for Lanes {
    fn default() -> Self {
        Self([0.0; LANES])
    }
}

impl Lanes {
    /// Adds the squares of `values * factor`, which begin at a multiple of 16.
    #[inline(always)]
    pub(super) fn add(&mut self, values: &[f32], factor: f32) {
        // In registers, not in memory.
        let mut lanes = self.0;
        let (groups, rest) = values.as_chunks::<LANES>();
        for group in groups {
            for (lane, value) in lanes.iter_mut().zip(group) {
                *lane += square(value * factor);
            }
        }
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane += square(value * factor);
        }
        self.0 = lanes;
    }

    #[inline(always)]
    pub(super) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }
}

impl Figure for Lanes {
    #[inline(always)]
    fn add(&mut self, values: &[f32], factor: f32) {
        self.add(values, factor);
    }

    fn value(&self) -> f64 {
        self.sum()
    }

    fn join(a: f64, b: f64) -> f64 {
        a + b
    }
}

/// The largest magnitude so far.
#[derive(Debug, Default)]
struct Largest(f32);

impl Figure for Largest {
    #[inline(always)]
    fn add(&mut self, values: &[f32], factor: f32) {
        self.0 = values.iter().fold(self.0, |largest, value| largest.max((value * factor).abs()));
    }

    fn value(&self) -> f64 {
        f64::from(self.0)
    }

    fn join(a: f64, b: f64) -> f64 {
        a.max(b)
    }
}

#[inline(always)]
fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

impl Check {
    /// What the squared norms of the tensors tell.
    pub(super) fn of(squares: Vec<f64>) -> Self {
        let spoilt = squares.iter().position(|squares| !squares.is_finite());
        let non_finite = spoilt.map(|index| match squares[index].is_nan() {
            true => (index, NonFinite::NaN),
            false => (index, NonFinite::Inf),
        });
        Self { squared_norm: squares.iter().sum(), non_finite }
    }
}
