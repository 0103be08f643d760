//! Identity and gradients of tensors.

use std::ptr;

use tch::{TchError, Tensor};

use super::ffi;

/// Which tensor a handle refers to: shallow clones have the same id, copies and views have others.
///
/// It identifies a tensor only while a handle on it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TensorId(usize);

/// Returns the tensor's identity.
pub(crate) fn tensor_id(tensor: &Tensor) -> TensorId {
    // SAFETY: the pointer of a `Tensor` is valid for the `Tensor`'s life.
    TensorId(unsafe { ffi::tch_amp_tensor_id(tensor.as_ptr()) }.addr())
}

/// Whether autograd records the operations of this thread.
pub(crate) fn grad_enabled() -> bool {
    ffi::tch_amp_grad_enabled()
}

/// Moves the gradient out of a tensor and leaves it without one. Copies nothing.
pub(crate) fn take_grad(tensor: &Tensor) -> Option<Tensor> {
    // SAFETY: the pointer of a `Tensor` is valid for the `Tensor`'s life.
    let grad = unsafe { ffi::tch_amp_take_grad(tensor.as_ptr()) };
    // SAFETY: a non-null result is a new tensor that nobody else owns.
    (!grad.is_null()).then(|| unsafe { Tensor::from_ptr(grad) })
}

/// Makes `grad` the gradient of a tensor, or removes the gradient. The two share their memory
/// afterwards.
///
/// # Errors
///
/// When shapes or devices differ, or `grad` is the tensor itself. The gradient is then as before.
pub(crate) fn set_grad(tensor: &Tensor, grad: Option<&Tensor>) -> Result<(), TchError> {
    let grad = grad.map_or(ptr::null(), Tensor::as_ptr);
    // SAFETY: both pointers are null or valid for this call, and the message is passed on at once.
    unsafe { ffi::check(ffi::tch_amp_set_grad(tensor.as_ptr(), grad)) }
}
