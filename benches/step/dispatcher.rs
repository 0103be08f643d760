//! Operations that tch has no function for, through libtorch's stable C ABI.
//!
//! The declarations are those of `torch/csrc/inductor/aoti_torch/c/shim.h` and
//! `torch/csrc/stable/c/shim.h`. A tensor's handle there is an `at::Tensor*`, as in torch-sys.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
};

use tch::Tensor;

use crate::Outcome;

unsafe extern "C" {
    safe fn aoti_torch_abi_version() -> u64;
    fn aoti_torch_new_tensor_handle(tensor: *mut c_void, handle: *mut *mut c_void) -> i32;
    fn torch_new_list_reserve_size(size: usize, list: *mut *mut c_void) -> i32;
    fn torch_list_push_back(list: *mut c_void, element: u64) -> i32;
    fn torch_call_dispatcher(
        name: *const c_char,
        overload: *const c_char,
        stack: *mut u64,
        version: u64,
    ) -> i32;
}

/// A value on the stack of a call, which takes it over.
pub struct Argument(u64);

pub fn float(value: f64) -> Argument {
    Argument(value.to_bits())
}

/// `None`, `false` or 0.
pub fn none() -> Argument {
    Argument(0)
}

pub fn tensor(tensor: &Tensor) -> Outcome<Argument> {
    let mut handle = ptr::null_mut();
    // SAFETY: the first is an `at::Tensor*` that lives through the call, which writes the second.
    let code =
        unsafe { aoti_torch_new_tensor_handle(tensor.as_ptr().cast_mut().cast(), &mut handle) };
    succeeded(code)?;
    Ok(Argument(handle as u64))
}

pub fn list(tensors: &[Tensor]) -> Outcome<Argument> {
    let mut list = ptr::null_mut();
    // SAFETY: the call writes the pointer to a new list.
    succeeded(unsafe { torch_new_list_reserve_size(tensors.len(), &mut list) })?;
    for element in tensors {
        // SAFETY: the list was made above, and takes over the handle.
        succeeded(unsafe { torch_list_push_back(list, tensor(element)?.0) })?;
    }
    Ok(Argument(list as u64))
}

/// Calls an operation that works in place and returns nothing that is of interest.
pub fn call(name: &CStr, arguments: Vec<Argument>) -> Outcome {
    let mut stack: Vec<u64> = arguments.into_iter().map(|argument| argument.0).collect();
    // SAFETY: the arguments are those of the operation's schema, in order, and the stack has room
    // for what it returns, which is no more than it takes.
    let code = unsafe {
        torch_call_dispatcher(
            name.as_ptr(),
            c"".as_ptr(),
            stack.as_mut_ptr(),
            aoti_torch_abi_version(),
        )
    };
    succeeded(code)
}

fn succeeded(code: i32) -> Outcome {
    match code {
        0 => Ok(()),
        code => Err(format!("libtorch's C ABI returned {code}").into()),
    }
}
