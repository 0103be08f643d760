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

/// Runs the backward pass of a scalar. With `retain_graph`, another one can follow.
pub(crate) fn backward(loss: &Tensor, retain_graph: bool) -> Result<(), TchError> {
    // SAFETY: the pointer is valid for this call, and the message is passed on at once.
    unsafe { ffi::check(ffi::tch_amp_backward(loss.as_ptr(), retain_graph)) }
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

#[cfg(test)]
#[allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn ones(shape: [i64; 2]) -> Tensor {
        Tensor::ones(shape, (Kind::Float, Device::Cpu))
    }

    fn trained() -> Tensor {
        let weight = ones([2, 3]).set_requires_grad(true);
        (&weight * 3.0).sum(Kind::Float).backward();
        weight
    }

    #[test]
    fn clones_of_a_handle_share_the_id_and_copies_do_not() {
        let tensor = ones([2, 3]);
        assert_eq!(tensor_id(&tensor), tensor_id(&tensor.shallow_clone()));
        assert_ne!(tensor_id(&tensor), tensor_id(&tensor.copy()));
        assert_ne!(tensor_id(&tensor), tensor_id(&tensor.view([3, 2])));
    }

    #[test]
    fn the_id_survives_a_change_of_the_memory() {
        let mut tensor = ones([2, 3]);
        let id = tensor_id(&tensor);
        tensor.set_data(&ones([2, 3]).to_kind(Kind::BFloat16));
        assert_eq!((tensor_id(&tensor), tensor.kind()), (id, Kind::BFloat16));
    }

    #[test]
    fn a_taken_gradient_is_gone_from_the_tensor() {
        let weight = trained();
        let grad = take_grad(&weight).unwrap();
        assert_eq!(grad.sum(Kind::Float).double_value(&[]), 18.0);
        assert!(!weight.grad().defined());
        assert!(take_grad(&weight).is_none());
    }

    #[test]
    fn taking_a_gradient_copies_nothing() {
        let weight = trained();
        let address = weight.grad().data_ptr();
        assert_eq!(take_grad(&weight).unwrap().data_ptr(), address);
    }

    #[test]
    fn a_tensor_that_takes_no_part_in_autograd_has_no_gradient() {
        assert!(take_grad(&ones([1, 1])).is_none());
        assert!(take_grad(&Tensor::new()).is_none());
        set_grad(&ones([1, 1]), None).unwrap();
    }

    #[test]
    fn a_gradient_can_be_set_and_removed() {
        let weight = trained();
        let grad = ones([2, 3]);
        set_grad(&weight, Some(&grad)).unwrap();
        assert_eq!(tensor_id(&weight.grad()), tensor_id(&grad));
        set_grad(&weight, None).unwrap();
        assert!(!weight.grad().defined());
    }

    #[test]
    fn a_gradient_may_have_another_type_than_its_tensor() {
        let weight = ones([2, 3]).to_kind(Kind::BFloat16);
        set_grad(&weight, Some(&ones([2, 3]))).unwrap();
        assert_eq!(weight.grad().kind(), Kind::Float);
    }

    #[test]
    fn a_gradient_of_another_shape_is_refused_and_the_old_one_stays() {
        let weight = trained();
        let error = set_grad(&weight, Some(&ones([3, 2]))).unwrap_err();
        let TchError::Torch(message) = error else { panic!("{error}") };
        assert_eq!(message, "a gradient of shape [3, 2] for a tensor of shape [2, 3]");
        assert_eq!(weight.grad().sum(Kind::Float).double_value(&[]), 18.0);
    }

    #[test]
    fn a_tensor_is_not_its_own_gradient() {
        let weight = trained();
        assert!(set_grad(&weight, Some(&weight)).is_err());
    }

    #[test]
    fn grad_mode_is_that_of_the_thread() {
        assert!(grad_enabled());
        tch::no_grad(|| {
            assert!(!grad_enabled());
            assert!(std::thread::spawn(grad_enabled).join().unwrap());
        });
        assert!(grad_enabled());
    }
}
