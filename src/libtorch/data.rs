//! Views of tensors in the CPU's memory as slices.
//!
//! # Aliasing
//!
//! libtorch knows nothing of Rust's borrows: handles share memory, and any of them can write to it.
//! While a slice from here lives, its user runs no libtorch operation on that memory and takes no
//! mutable slice of memory that another slice refers to.

use std::{
    ffi::{c_int, c_void},
    ptr, slice as raw,
};

use half::{bf16, f16};
use tch::{Kind, Tensor};

use super::ffi;

/// A type that elements of a tensor can be viewed as. The set is closed.
///
/// Not `tch::kind::Element`, whose entry for `bf16` is wrong.
pub(crate) trait Element: sealed::Element + Copy + 'static {
    /// The type's code in libtorch.
    const DTYPE: c_int;
}

impl Element for f16 {
    const DTYPE: c_int = ffi::HALF;
}
impl Element for f32 {
    const DTYPE: c_int = ffi::FLOAT;
}
impl Element for f64 {
    const DTYPE: c_int = ffi::DOUBLE;
}
impl Element for bf16 {
    const DTYPE: c_int = ffi::BFLOAT16;
}

/// Views the elements of a row-major CPU tensor of type `T`, in order.
///
/// `None` for any other tensor: on another device, of another type or layout, or undefined.
pub(crate) fn slice<T: Element>(tensor: &Tensor) -> Option<&[T]> {
    let (data, len) = data::<T>(tensor, false)?;
    // SAFETY: `data` points to `len` elements of type `T`, aligned, of which any bit pattern is
    // valid; the tensor keeps them alive as long as it is borrowed. Nobody writes: see "Aliasing".
    Some(unsafe { raw::from_raw_parts(data, len) })
}

/// Views the elements of a row-major CPU tensor of type `T`, in order, to be written.
///
/// Counts as an in-place operation: a backward pass through a graph that saved the tensor's old
/// values fails. `None` as for [`slice`], and for inference tensors.
pub(crate) fn slice_mut<T: Element>(tensor: &mut Tensor) -> Option<&mut [T]> {
    let (data, len) = data::<T>(tensor, true)?;
    // SAFETY: as in `slice`; besides, nobody else reads or writes: see "Aliasing".
    Some(unsafe { raw::from_raw_parts_mut(data, len) })
}

/// Views the memory of a row-major CPU tensor of any type, native-endian.
///
/// `None` for a tensor that is on another device, of another layout, or undefined.
pub(crate) fn bytes(tensor: &Tensor) -> Option<&[u8]> {
    let (data, len) = memory(tensor, false)?;
    // SAFETY: `data` points to `len` initialised bytes, which the tensor keeps alive as long as it
    // is borrowed. Nobody writes: see "Aliasing".
    Some(unsafe { raw::from_raw_parts(data, len) })
}

/// Views the memory of a row-major CPU tensor of numbers, to be written.
///
/// Counts as an in-place operation. `None` as for [`bytes`], and for types of which not every bit
/// pattern is valid.
pub(crate) fn bytes_mut(tensor: &mut Tensor) -> Option<&mut [u8]> {
    if !tensor.f_kind().is_ok_and(is_number) {
        return None;
    }
    let (data, len) = memory(tensor, true)?;
    // SAFETY: as in `bytes`; besides, nobody else reads or writes (see "Aliasing"), and a number has
    // no invalid bit pattern.
    Some(unsafe { raw::from_raw_parts_mut(data, len) })
}

fn is_number(kind: Kind) -> bool {
    use Kind::{BFloat16, Double, Float, Half, Int, Int8, Int16, Int64, Uint8};
    matches!(kind, Uint8 | Int8 | Int16 | Int | Int64 | Half | BFloat16 | Float | Double)
}

fn memory(tensor: &Tensor, write: bool) -> Option<(*mut u8, usize)> {
    let (data, len) = array(tensor, ffi::ANY, write)?;
    let data = if len == 0 { ptr::dangling_mut() } else { data.cast::<u8>() };
    let bytes = len * tensor.f_kind().ok()?.elt_size_in_bytes();
    (!data.is_null()).then_some((data, bytes))
}

fn data<T: Element>(tensor: &Tensor, write: bool) -> Option<(*mut T, usize)> {
    let (data, len) = array(tensor, T::DTYPE, write)?;
    let data = data.cast::<T>();
    match len {
        0 => Some((ptr::dangling_mut(), 0)),
        _ => (!data.is_null() && data.is_aligned()).then_some((data, len)),
    }
}

/// The first element and the number of elements.
fn array(tensor: &Tensor, dtype: c_int, write: bool) -> Option<(*mut c_void, usize)> {
    let (mut data, mut len) = (ptr::null_mut::<c_void>(), 0);
    // SAFETY: all three pointers are valid for the call; the shim checks the tensor and writes the
    // other two only for an array of the type with code `dtype`.
    let found = unsafe { ffi::tch_amp_data(tensor.as_ptr(), dtype, write, &mut data, &mut len) };
    found.then_some((data, len))
}

mod sealed {
    pub(crate) trait Element {}
    impl Element for half::f16 {}
    impl Element for f32 {}
    impl Element for f64 {}
    impl Element for half::bf16 {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tch::Device;

    use super::*;

    fn counted(kind: Kind) -> Tensor {
        Tensor::arange(6, (Kind::Float, Device::Cpu)).to_kind(kind).view([2, 3])
    }

    fn as_f64<T: Element + Into<f64>>(tensor: &Tensor) -> Vec<f64> {
        slice::<T>(tensor).unwrap().iter().map(|&x| x.into()).collect()
    }

    #[test]
    fn elements_of_each_type_are_seen_in_row_major_order() {
        let expected = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(as_f64::<f32>(&counted(Kind::Float)), expected);
        assert_eq!(as_f64::<f64>(&counted(Kind::Double)), expected);
        assert_eq!(as_f64::<f16>(&counted(Kind::Half)), expected);
        assert_eq!(as_f64::<bf16>(&counted(Kind::BFloat16)), expected);
    }

    #[test]
    fn a_contiguous_part_starts_at_its_own_elements() {
        assert_eq!(slice::<f32>(&counted(Kind::Float).get(1)).unwrap(), [3.0, 4.0, 5.0]);
    }

    #[test]
    fn writes_reach_the_tensor() {
        let mut tensor = counted(Kind::BFloat16);
        slice_mut::<bf16>(&mut tensor).unwrap().fill(bf16::from_f32(1.5));
        assert_eq!(tensor.sum(Kind::Float).double_value(&[]), 9.0);
    }

    #[test]
    fn a_tensor_of_another_type_has_no_slice() {
        assert!(slice::<f16>(&counted(Kind::BFloat16)).is_none());
        assert!(slice::<bf16>(&counted(Kind::Half)).is_none());
        assert!(slice::<f32>(&counted(Kind::Int)).is_none());
        assert!(slice_mut::<f32>(&mut counted(Kind::Double)).is_none());
    }

    #[test]
    fn a_tensor_with_gaps_or_another_order_has_no_slice() {
        let tensor = counted(Kind::Float);
        assert!(slice::<f32>(&tensor.tr()).is_none());
        assert!(slice::<f32>(&tensor.select(1, 0)).is_none());
        assert!(slice::<f32>(&tensor.get(0).expand([4, 3], false)).is_none());
        assert!(slice_mut::<f32>(&mut tensor.tr()).is_none());
    }

    #[test]
    fn tensors_that_are_no_arrays_have_no_slice() {
        assert!(slice::<f32>(&Tensor::new()).is_none());
        assert!(slice::<f32>(&counted(Kind::Float).to_sparse(None, None::<i64>, None)).is_none());
        let options = (Kind::Float, Device::Cpu);
        assert!(slice::<f32>(&Tensor::internal_efficientzerotensor([2], options)).is_none());
        let conjugated = Tensor::zeros([1], (Kind::ComplexFloat, Device::Cpu)).conj().imag();
        assert!(slice::<f32>(&conjugated).is_none());
    }

    #[test]
    fn an_empty_tensor_has_an_empty_slice() {
        let mut empty = Tensor::empty([0, 3], (Kind::Float, Device::Cpu));
        assert!(slice::<f32>(&empty).unwrap().is_empty());
        assert!(slice_mut::<f32>(&mut empty).unwrap().is_empty());
    }

    #[test]
    fn bytes_are_those_of_the_elements_of_any_type() {
        assert_eq!(bytes(&Tensor::from_slice(&[1i64, -1])).unwrap()[..8], 1i64.to_le_bytes());
        assert_eq!(bytes(&Tensor::from_slice(&[true, false])).unwrap(), [1, 0]);
        assert_eq!(bytes(&counted(Kind::BFloat16)).unwrap()[2..4], [0x80, 0x3F]);
        assert!(bytes(&Tensor::zeros([0], (Kind::Float, Device::Cpu))).unwrap().is_empty());
        assert!(bytes(&counted(Kind::Float).tr()).is_none());
        assert!(bytes(&Tensor::new()).is_none());
    }

    #[test]
    fn written_bytes_reach_the_tensor() {
        let mut tensor = counted(Kind::Float);
        bytes_mut(&mut tensor).unwrap()[..4].copy_from_slice(&7.5f32.to_le_bytes());
        assert_eq!(slice::<f32>(&tensor).unwrap()[..2], [7.5, 1.0]);
    }

    #[test]
    fn booleans_cannot_be_written_as_bytes() {
        assert!(bytes_mut(&mut Tensor::from_slice(&[true])).is_none());
    }

    #[test]
    fn autograd_notices_a_write() {
        let weight = counted(Kind::Float).set_requires_grad(true);
        let loss = (&weight * &weight).sum(Kind::Float);
        let mut handle = weight.shallow_clone();
        slice_mut::<f32>(&mut handle).unwrap().fill(0.0);
        let error = loss.f_backward().unwrap_err().to_string();
        assert!(error.contains("modified by an inplace operation"), "{error}");
    }

    #[test]
    fn autograd_does_not_mind_a_read() {
        let weight = counted(Kind::Float).set_requires_grad(true);
        let loss = (&weight * &weight).sum(Kind::Float);
        assert_eq!(slice::<f32>(&weight).unwrap().len(), 6);
        loss.backward();
        assert_eq!(slice::<f32>(&weight.grad()).unwrap(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }
}
