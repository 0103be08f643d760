//! What an optimizer is to the kernels: one element-wise rule.

use tch::{TchError, Tensor};

/// An element-wise update rule with `K` state tensors, for one element.
pub(crate) trait ElementRule<const K: usize>: Copy + Send + std::fmt::Debug {
    /// The new weight and state. `#[inline(always)]`, so that it is compiled for each instruction
    /// set.
    fn element(&self, grad: f32, weight: f32, state: [f32; K]) -> (f32, [f32; K]);
}

/// A rule that is written twice, for one element and as tensor operations; both read like the
/// formula.
pub(crate) trait Rule<const K: usize>: ElementRule<K> {
    /// The same for whole tensors: `grad` and `weight` are FP32, and `grad` may be overwritten.
    fn tensor(
        &self,
        grad: Tensor,
        weight: &Tensor,
        state: &mut [Tensor; K],
    ) -> Result<Tensor, TchError>;
}
