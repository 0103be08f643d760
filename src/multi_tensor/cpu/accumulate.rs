//! Gradients in FP32: scaled ones, and sums of them.

use tch::{Device, Kind, TchError, Tensor};

use super::{
    BLOCK, CHUNK, InstructionSet, blocks, for_each,
    norm::Lanes,
    simd::{Instructions, Loop},
    values::{Dense, Values, unlike},
};
use crate::{libtorch::slice_mut, multi_tensor::Check};

/// Makes `grad * factor` as a new FP32 tensor.
pub(in crate::multi_tensor) fn scale(grad: &Tensor, factor: f32) -> Result<Tensor, TchError> {
    let mut sums = [None];
    add(&mut sums, &[Some(grad.shallow_clone())], factor, InstructionSet::chosen())?;
    let [scaled] = sums;
    scaled.ok_or_else(unlike)
}

/// See [`accumulate`](crate::multi_tensor::accumulate).
pub(in crate::multi_tensor) fn accumulate(
    sums: &mut [Option<Tensor>],
    grads: &[Option<Tensor>],
    factor: f32,
) -> Result<Check, TchError> {
    Ok(Check::of(add(sums, grads, factor, InstructionSet::chosen())?))
}

/// Adds, and returns the squared norms of the sums that got a gradient.
pub(in crate::multi_tensor) fn add(
    sums: &mut [Option<Tensor>],
    grads: &[Option<Tensor>],
    factor: f32,
    set: InstructionSet,
) -> Result<Vec<f64>, TchError> {
    let dense = grads.iter().map(|grad| grad.as_ref().map(Dense::of).transpose());
    let dense = dense.collect::<Result<Vec<_>, _>>()?;
    let mut chunks = Vec::with_capacity(grads.len());
    let mut elements = 0;
    for (tensor, (sum, grad)) in sums.iter_mut().zip(&dense).enumerate() {
        let Some(grad) = grad else { continue };
        let mut values = grad.values()?;
        let first = sum.is_none();
        let sum = match sum {
            Some(sum) => {
                if slice_mut::<f32>(sum).is_none() {
                    *sum = row_major(sum)?;
                }
                sum
            }
            None => {
                let size = grad.tensor().size();
                sum.insert(Tensor::f_empty(size, (Kind::Float, Device::Cpu))?)
            }
        };
        let sum = slice_mut::<f32>(sum).filter(|sum| sum.len() == values.len());
        let sum = sum.ok_or_else(unlike)?;
        elements += values.len();
        for sum in sum.chunks_mut(CHUNK) {
            let grad = values.take(sum.len()).ok_or_else(unlike)?;
            chunks.push(Addition { tensor, first, sum, grad, factor, squares: 0.0 });
        }
    }
    for_each(&mut chunks, elements, |chunk| set.run(chunk));
    let mut squares = vec![0.0; grads.len()];
    for chunk in &chunks {
        squares[chunk.tensor] += chunk.squares;
    }
    Ok(squares)
}

fn row_major(tensor: &Tensor) -> Result<Tensor, TchError> {
    let mut copy = Tensor::f_empty(tensor.size(), (Kind::Float, Device::Cpu))?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

/// A chunk of a sum.
struct Addition<'a> {
    tensor: usize,
    /// Whether there is nothing in the sum yet.
    first: bool,
    sum: &'a mut [f32],
    grad: Values<'a>,
    factor: f32,
    squares: f64,
}

impl Loop for &mut Addition<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let mut lanes = Lanes::default();
        let mut block = [0.0; BLOCK];
        for range in blocks(self.sum.len()) {
            let block = &mut block[..range.len()];
            self.grad.load::<I>(range.start, block);
            let sum = &mut self.sum[range];
            if self.first {
                for (sum, grad) in sum.iter_mut().zip(block) {
                    *sum = *grad * self.factor;
                }
            } else {
                for (sum, grad) in sum.iter_mut().zip(block) {
                    *sum += *grad * self.factor;
                }
            }
            lanes.add(sum, 1.0);
        }
        self.squares = lanes.sum();
    }
}
