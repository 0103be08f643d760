//! NVRTC, NVIDIA's compiler for kernels, as libtorch brings it.
#![allow(unsafe_code, reason = "calls NVRTC: each block says why it is sound")]

use std::{
    ffi::{CString, c_char, c_int, c_void},
    path::{Path, PathBuf},
    ptr,
};

use libloading::Library;

type Program = *mut c_void;

macro_rules! functions {
    ($($field:ident = $symbol:literal: ($($argument:ty),*);)*) => {
        /// The functions of NVRTC that are called.
        #[derive(Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Library) -> Option<Self> {
                // SAFETY: the types are those of nvrtc.h, and `Nvrtc` keeps the library.
                Some(unsafe { Self { $($field: *library.get($symbol).ok()?,)* } })
            }
        }
    };
}

functions! {
    version = b"nvrtcVersion": (*mut c_int, *mut c_int);
    create = b"nvrtcCreateProgram": (
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char
    );
    compile = b"nvrtcCompileProgram": (Program, c_int, *const *const c_char);
    log_size = b"nvrtcGetProgramLogSize": (Program, *mut usize);
    log = b"nvrtcGetProgramLog": (Program, *mut c_char);
    cubin_size = b"nvrtcGetCUBINSize": (Program, *mut usize);
    cubin = b"nvrtcGetCUBIN": (Program, *mut c_char);
    ptx_size = b"nvrtcGetPTXSize": (Program, *mut usize);
    ptx = b"nvrtcGetPTX": (Program, *mut c_char);
    destroy = b"nvrtcDestroyProgram": (*mut Program);
}

/// The options that every kernel is compiled with, for an architecture such as `sm_90`.
pub(super) fn options(architecture: &str) -> [String; 3] {
    [
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
        // Results are those of the CPU's loops.
        "--fmad=false".to_owned(),
    ]
}

/// The compiler.
#[derive(Debug)]
pub(super) struct Nvrtc {
    functions: Functions,
    _libraries: Vec<Library>,
    pub(super) version: (i32, i32),
}

impl Nvrtc {
    /// The compiler that the libtorch in a folder is linked to, else any that the system finds.
    pub(super) fn find(libtorch: Option<&Path>) -> Option<Self> {
        candidates(libtorch).into_iter().find_map(|name| Self::open(&[name]))
    }

    /// Opens libraries; the last is NVRTC, or depends on it.
    pub(super) fn open(names: &[PathBuf]) -> Option<Self> {
        // SAFETY: the initialisers of libtorch and NVRTC have no conditions.
        let open = |name| unsafe { Library::new(name) }.ok();
        let libraries: Vec<_> = names.iter().map(open).collect::<Option<_>>()?;
        // A handle finds the symbols of what its library depends on, too.
        let functions = Functions::of(libraries.last()?)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (functions.version)(&mut major, &mut minor) };
        (code == 0).then_some(Self { functions, _libraries: libraries, version: (major, minor) })
    }

    /// Compiles a file with these headers to a cubin, or to PTX for an architecture such as
    /// `compute_75`.
    ///
    /// # Errors
    ///
    /// What the compiler said.
    pub(super) fn compile(
        &self,
        (name, text): (&str, &str),
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Result<Vec<u8>, String> {
        Compilation::new(&self.functions, (name, text), headers)?.compile(options)
    }
}

fn candidates(libtorch: Option<&Path>) -> Vec<PathBuf> {
    let beside = |name: &str| libtorch.map(|folder| folder.join(name));
    let of_libtorch = ["libtorch_cuda.so", "libcaffe2_nvrtc.so"].into_iter().filter_map(beside);
    let names = match cfg!(windows) {
        true => ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"].as_slice(),
        false => &["libnvrtc.so.13", "libnvrtc.so.12"],
    };
    of_libtorch.filter(|path| path.exists()).chain(names.iter().map(PathBuf::from)).collect()
}

/// A program of NVRTC's, destroyed in the end.
struct Compilation<'n> {
    functions: &'n Functions,
    program: Program,
}

impl<'n> Compilation<'n> {
    fn new(
        functions: &'n Functions,
        (name, code): (&str, &str),
        headers: &[(&str, &str)],
    ) -> Result<Self, String> {
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let (code, name) = (text(code)?, text(name)?);
        let names: Vec<_> = headers.iter().map(|(name, _)| text(name)).collect::<Result<_, _>>()?;
        let headers: Vec<_> =
            headers.iter().map(|(_, code)| text(code)).collect::<Result<_, _>>()?;
        let pointers = |all: &[CString]| all.iter().map(|one| one.as_ptr()).collect::<Vec<_>>();
        let (header_code, header_names) = (pointers(&headers), pointers(&names));
        let mut program = ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and both arrays have `headers.len()` entries.
        let status = unsafe {
            let count = headers.len() as c_int;
            let (headers, names) = (header_code.as_ptr(), header_names.as_ptr());
            (functions.create)(&mut program, code.as_ptr(), name.as_ptr(), count, headers, names)
        };
        match status {
            0 => Ok(Self { functions, program }),
            _ => Err(format!("nvrtcCreateProgram returned {status}")),
        }
    }

    fn compile(self, options: &[String]) -> Result<Vec<u8>, String> {
        let options = options.iter().map(|option| CString::new(option.as_str()));
        let options: Vec<_> =
            options.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is valid, and the array has `options.len()` entries.
        let status = unsafe {
            (self.functions.compile)(self.program, options.len() as c_int, options.as_ptr())
        };
        if status != 0 {
            let log = self.read(self.functions.log_size, self.functions.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let line = log.lines().find(|line| line.contains("error")).unwrap_or(&log);
            return Err(format!("nvrtcCompileProgram returned {status}: {}", line.trim()));
        }
        let functions = self.functions;
        self.read(functions.cubin_size, functions.cubin)
            .or_else(|| self.read(functions.ptx_size, functions.ptx))
            .ok_or_else(|| "NVRTC made neither cubin nor PTX".to_owned())
    }

    fn read(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the program is valid, and so is the pointer for the call.
        let status = unsafe { size(self.program, &mut len) };
        if status != 0 || len == 0 {
            return None;
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: the program is valid, and `bytes` has the size that NVRTC asks for.
        let status = unsafe { get(self.program, bytes.as_mut_ptr().cast()) };
        (status == 0).then_some(bytes)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is valid, and nobody uses it after this.
        unsafe { (self.functions.destroy)(&mut self.program) };
    }
}
