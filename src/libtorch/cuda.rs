//! What kernels of our own need to know of libtorch: addresses, streams, and where it lies.

use std::{
    ffi::{CStr, OsString, c_int, c_void},
    path::PathBuf,
    ptr,
    sync::OnceLock,
};

use libloading::Library;
use tch::{Kind, Tensor};

use super::ffi;

/// The memory of a row-major tensor, on any device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Where it begins, in the address space of the tensor's device.
    pub(crate) address: u64,
    /// The number of elements.
    pub(crate) elements: u64,
    /// Their type: FP32 or 16 bits.
    pub(crate) kind: Kind,
}

/// Where a tensor's elements are. With `write`, it counts as an in-place operation.
///
/// `None` for a tensor of another layout or type.
pub(crate) fn memory(tensor: &Tensor, write: bool) -> Option<Memory> {
    let (mut data, mut len, mut dtype) = (ptr::null_mut(), 0, 0);
    // SAFETY: all pointers are valid for the call; the shim checks the tensor.
    let found =
        unsafe { ffi::tch_amp_memory(tensor.as_ptr(), write, &mut data, &mut len, &mut dtype) };
    let kind = match dtype {
        ffi::FLOAT => Kind::Float,
        ffi::HALF => Kind::Half,
        ffi::BFLOAT16 => Kind::BFloat16,
        _ => return None,
    };
    let address = data.addr() as u64;
    found.then_some(Memory { address, elements: len as u64, kind })
}

/// The folder of libtorch's libraries.
pub(crate) fn folder() -> Option<PathBuf> {
    let path = ffi::tch_amp_libtorch_path();
    if path.is_null() {
        return None;
    }
    // SAFETY: a string of the shim is a C string that stays valid until it is freed below.
    let text = unsafe { CStr::from_ptr(path) };
    let copy = PathBuf::from(OsString::from(text.to_string_lossy().into_owned()));
    // SAFETY: the string is the shim's, and nothing refers to it any more.
    unsafe { ffi::tch_amp_free_message(path) };
    copy.parent().map(PathBuf::from)
}

type GetStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> c_int;

/// The stream that libtorch uses on a CUDA device now, for this thread; `None` where libtorch has
/// no CUDA.
pub(crate) fn current_stream(device: usize) -> Option<*mut c_void> {
    static GET: OnceLock<Option<GetStream>> = OnceLock::new();
    let get = GET.get_or_init(|| {
        let name = if cfg!(windows) { "torch_cuda.dll" } else { "libtorch_cuda.so" };
        let path = folder().map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
        // SAFETY: libtorch's initialisers have no conditions, and have run before.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: the type is that of libtorch's stable C ABI (`aoti_torch/c/shim.h`).
        let get = unsafe { library.get::<GetStream>(b"aoti_torch_get_current_cuda_stream") };
        let get = get.ok().map(|symbol| *symbol);
        // The function is called until the process ends.
        std::mem::forget(library);
        get
    });
    let mut stream = ptr::null_mut();
    // SAFETY: the pointer is valid for the call.
    let code = unsafe { (*get)?(device as i32, &mut stream) };
    (code == 0).then_some(stream)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn memory_is_that_of_the_elements() {
        let tensor = Tensor::zeros([4, 3], (Kind::BFloat16, Device::Cpu));
        let whole = memory(&tensor, false).unwrap();
        assert_eq!((whole.elements, whole.kind), (12, Kind::BFloat16));
        assert_eq!(whole.address, tensor.data_ptr().addr() as u64);
        let row = memory(&tensor.get(1), false).unwrap();
        assert_eq!((row.address, row.elements), (whole.address + 6, 3));
        assert!(memory(&tensor.tr(), false).is_none());
        assert!(memory(&tensor.to_kind(Kind::Double), false).is_none());
        assert!(memory(&Tensor::new(), false).is_none());
    }

    #[test]
    fn libtorch_lies_in_its_folder() {
        let folder = folder().unwrap();
        assert!(
            folder.join("libtorch_cpu.so").exists() || !cfg!(target_os = "linux"),
            "{folder:?}"
        );
    }
}
