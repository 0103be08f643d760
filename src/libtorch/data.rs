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
use tch::Tensor;

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

fn data<T: Element>(tensor: &Tensor, write: bool) -> Option<(*mut T, usize)> {
    let (mut data, mut len) = (ptr::null_mut::<c_void>(), 0);
    // SAFETY: all three pointers are valid for the call; the shim checks the tensor and writes the
    // other two only for an array of the type with code `T::DTYPE`.
    let found =
        unsafe { ffi::tch_amp_data(tensor.as_ptr(), T::DTYPE, write, &mut data, &mut len) };
    let data = data.cast::<T>();
    match found {
        true if len == 0 => Some((ptr::dangling_mut(), 0)),
        true if !data.is_null() && data.is_aligned() => Some((data, len)),
        _ => None,
    }
}

mod sealed {
    pub(crate) trait Element {}
    impl Element for half::f16 {}
    impl Element for f32 {}
    impl Element for f64 {}
    impl Element for half::bf16 {}
}
