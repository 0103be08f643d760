//! Runs the CUDA kernels on the CPU, thread by thread.

#[path = "../../../src/multi_tensor/cuda/layout.rs"]
mod layout;

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    path::Path,
    sync::{Mutex, PoisonError},
};

use libloading::Library;

pub use layout::*;

/// A CUDA driver, as a shared library, whose device is this CPU: `TCH_AMP_CUDA_DRIVER` names it to
/// the library.
pub const DRIVER: &str = env!("TCH_AMP_EMULATED_DRIVER");

type Emulate = unsafe extern "C" fn(
    name: *const c_char,
    blocks: c_uint,
    threads: c_uint,
    arguments: *mut *mut c_void,
    seed: u64,
    message: *mut c_char,
    size: usize,
) -> c_int;

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

/// All kernels, compiled for the CPU.
#[derive(Debug)]
pub struct Kernels {
    emulate: Emulate,
    /// The emulator's state is global.
    running: Mutex<()>,
    _library: Option<Library>,
}

impl Kernels {
    /// Returns those that are compiled with this crate.
    pub fn linked() -> &'static Self {
        static LINKED: Kernels =
            Kernels { emulate: tch_amp_emulate, running: Mutex::new(()), _library: None };
        &LINKED
    }

    /// Loads those of a shared library.
    ///
    /// # Errors
    ///
    /// Where the library cannot be loaded, or has no kernels.
    ///
    /// # Safety
    ///
    /// The library is compiled from a `host/kernels.cpp`.
    pub unsafe fn open(library: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: such a library runs nothing but the registration of its kernels.
        let library = unsafe { Library::new(library) }?;
        // SAFETY: the function has this type in every `host/kernels.cpp`.
        let emulate = *unsafe { library.get::<Emulate>(b"tch_amp_emulate\0") }?;
        Ok(Self { emulate, running: Mutex::new(()), _library: Some(library) })
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
        &self,
        name: &str,
        blocks: u32,
        arguments: &mut [*mut c_void],
        seed: u64,
    ) -> Result<(), String> {
        let name = CString::new(name).map_err(|error| error.to_string())?;
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = [0; 256];
        // SAFETY: the caller answers for the arguments; the other pointers live through the call.
        let code = unsafe {
            let (to, size) = (message.as_mut_ptr(), message.len());
            (self.emulate)(name.as_ptr(), blocks, 256, arguments.as_mut_ptr(), seed, to, size)
        };
        match code {
            0 => Ok(()),
            1 => Err(format!("no kernel {name:?}")),
            // SAFETY: the message was written with its terminating zero.
            _ => Err(unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned()),
        }
    }
}
