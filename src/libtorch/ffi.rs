//! The functions of `shim.h`, and one of libtorch's own.

use std::ffi::{CStr, c_char, c_int, c_void};

use tch::TchError;
use torch_sys::C_tensor;

/// The codes of types in libtorch. The shim checks them at compile time.
pub(super) const HALF: c_int = 5;
pub(super) const FLOAT: c_int = 6;
pub(super) const DOUBLE: c_int = 7;
pub(super) const BFLOAT16: c_int = 15;
pub(super) const ANY: c_int = -1;

/// A kind of device whose operations autocast can cast: `TchAmpDevice` of `shim.h`.
///
/// All CUDA devices share one autocast state.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AutocastDevice {
    /// The CPU.
    Cpu = 0,
    /// All CUDA devices.
    Cuda = 1,
    /// Apple's GPUs.
    Mps = 2,
}

/// `TchAmpAutocast` of `shim.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Autocast {
    pub(super) dtype: c_int,
    pub(super) enabled: bool,
    pub(super) o1_lists: bool,
}

/// What [`torch_parallel_for`] calls with a part of the range and the context.
pub(super) type ParallelFunc = extern "C" fn(i64, i64, *mut c_void);

// libtorch's stable C ABI (`torch/csrc/stable/c/shim.h`).
unsafe extern "C" {
    pub(super) fn torch_parallel_for(
        begin: i64,
        end: i64,
        grain_size: i64,
        func: ParallelFunc,
        context: *mut c_void,
    ) -> i32;
}

unsafe extern "C" {
    pub(super) fn tch_amp_free_message(message: *mut c_char);

    pub(super) safe fn tch_amp_grad_enabled() -> bool;
    pub(super) fn tch_amp_tensor_id(tensor: *const C_tensor) -> *const c_void;
    pub(super) fn tch_amp_backward(loss: *const C_tensor, retain_graph: bool) -> *mut c_char;
    pub(super) fn tch_amp_take_grad(tensor: *const C_tensor) -> *mut C_tensor;
    pub(super) fn tch_amp_set_grad(tensor: *const C_tensor, grad: *const C_tensor) -> *mut c_char;
    pub(super) fn tch_amp_data(
        tensor: *const C_tensor,
        dtype: c_int,
        write: bool,
        data: *mut *mut c_void,
        len: *mut usize,
    ) -> bool;
    pub(super) fn tch_amp_memory(
        tensor: *const C_tensor,
        write: bool,
        data: *mut *mut c_void,
        len: *mut usize,
        dtype: *mut c_int,
    ) -> bool;
    pub(super) safe fn tch_amp_libtorch_path() -> *mut c_char;

    pub(super) fn tch_amp_generator_state(
        on_device: *const C_tensor,
        state: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub(super) fn tch_amp_set_generator_state(
        on_device: *const C_tensor,
        state: *const C_tensor,
    ) -> *mut c_char;

    pub(super) safe fn tch_amp_register_o1_lists(device: AutocastDevice) -> *mut c_char;
    pub(super) safe fn tch_amp_autocast_get(device: AutocastDevice, state: &mut Autocast);
    pub(super) safe fn tch_amp_autocast_set(device: AutocastDevice, state: &Autocast);
    pub(super) safe fn tch_amp_cast_cache() -> bool;
    pub(super) safe fn tch_amp_set_cast_cache(enabled: bool);
    pub(super) safe fn tch_amp_autocast_nest();
    pub(super) safe fn tch_amp_autocast_unnest();
}

/// Turns what a fallible function of the shim returned into a `Result`, with the first line of the
/// message.
///
/// # Safety
///
/// `message` is null or comes from the shim, and is not used again.
pub(super) unsafe fn check(message: *mut c_char) -> Result<(), TchError> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message of the shim is a C string that stays valid until it is freed below.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let line = text.lines().next().unwrap_or_default().to_owned();
    drop(text);
    // SAFETY: the message is the shim's, and nothing refers to it any more.
    unsafe { tch_amp_free_message(message) };
    Err(TchError::Torch(line))
}
