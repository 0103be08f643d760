//! Runs the CUDA kernels on the CPU, thread by thread.

mod layout;

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    sync::{Mutex, PoisonError},
};

pub use layout::*;

/// The emulator's state is global.
static RUNNING: Mutex<()> = Mutex::new(());

unsafe extern "C" {
    fn tch_amp_emulate(
        name: *const c_char,
        blocks: c_uint,
        threads: c_uint,
        arguments: *mut *mut c_void,
        seed: u64,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
}

/// Runs a kernel; seed 0 keeps threads and blocks in order. Launches wait for each other.
///
/// # Errors
///
/// A message where the kernel is unknown, or does what a GPU would not let it.
///
/// # Safety
///
/// The arguments point to values of the types of the kernel's parameters, and the pointers in
/// these to memory of the sizes that they tell.
pub unsafe fn launch(
    name: &str,
    blocks: u32,
    arguments: &mut [*mut c_void],
    seed: u64,
) -> Result<(), String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut message = [0; 256];
    // SAFETY: the caller answers for the arguments; the other pointers live through the call.
    let code = unsafe {
        let (to, size) = (message.as_mut_ptr(), message.len());
        tch_amp_emulate(name.as_ptr(), blocks, 256, arguments.as_mut_ptr(), seed, to, size)
    };
    match code {
        0 => Ok(()),
        1 => Err(format!("no kernel {name:?}")),
        // SAFETY: the message was written with its terminating zero.
        _ => Err(unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned()),
    }
}
