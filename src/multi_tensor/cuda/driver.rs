//! libcuda, loaded when it is first needed: a machine without a driver is no error.
#![allow(unsafe_code, reason = "calls libcuda: each block says why it is sound")]

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    ptr,
    sync::OnceLock,
};

use libloading::Library;

use super::Unavailable;

/// Names a library to load instead of the system's driver.
pub(super) const VARIABLE: &str = "TCH_AMP_CUDA_DRIVER";
const NAME: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
/// A driver that exports this runs kernels on the CPU, on tensors in the CPU's memory.
const RUNS_ON_CPU: &[u8] = b"tch_amp_runs_on_cpu";

/// Parameters of more than 4 KB need CUDA 12.1.
const OLDEST: c_int = 12_010;
const MULTIPROCESSORS: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
/// Threads of a block.
const THREADS: c_uint = 256;

type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident = $symbol:literal: ($($argument:ty),*);)*) => {
        /// The functions of libcuda that are called.
        #[derive(Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of cuda.h, and the library is never unloaded.
                Ok(unsafe { Self { $($field: *library.get($symbol)?,)* } })
            }
        }
    };
}

functions! {
    init = b"cuInit": (c_uint);
    version = b"cuDriverGetVersion": (*mut c_int);
    error_string = b"cuGetErrorString": (c_int, *mut *const c_char);
    device = b"cuDeviceGet": (*mut c_int, c_int);
    attribute = b"cuDeviceGetAttribute": (*mut c_int, c_int, c_int);
    retain_context = b"cuDevicePrimaryCtxRetain": (*mut Handle, c_int);
    push_context = b"cuCtxPushCurrent_v2": (Handle);
    pop_context = b"cuCtxPopCurrent_v2": (*mut Handle);
    load = b"cuModuleLoadData": (*mut Handle, *const c_void);
    function = b"cuModuleGetFunction": (*mut Handle, Handle, *const c_char);
    blocks = b"cuOccupancyMaxActiveBlocksPerMultiprocessor": (*mut c_int, Handle, c_int, usize);
    launch = b"cuLaunchKernel": (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle,
        *mut Handle
    );
}

/// The driver of this machine.
#[derive(Debug)]
pub(super) struct Driver {
    functions: Functions,
    /// Whether it runs kernels on the CPU, as the emulator's driver does.
    pub(super) runs_on_cpu: bool,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message} (error {code})")]
pub struct DriverError {
    call: &'static str,
    code: i32,
    message: String,
}

impl Driver {
    /// The driver, loaded once.
    pub(super) fn get() -> Result<&'static Self, Unavailable> {
        static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Unavailable::clone)
    }

    fn load() -> Result<Self, Unavailable> {
        let name = env::var_os(VARIABLE).unwrap_or_else(|| NAME.into());
        let no_driver = |error: libloading::Error| Unavailable::NoDriver(error.to_string());
        // SAFETY: libcuda's initialisers have no conditions.
        let library = unsafe { Library::new(name) }.map_err(no_driver)?;
        let functions = Functions::of(&library).map_err(no_driver)?;
        // SAFETY: the symbol's address alone matters.
        let runs_on_cpu = unsafe { library.get::<*const c_void>(RUNS_ON_CPU) }.is_ok();
        // The functions are called until the process ends.
        std::mem::forget(library);
        let driver = Self { functions, runs_on_cpu };
        // SAFETY: cuInit takes no pointer.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        let mut version = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (driver.functions.version)(&mut version) };
        driver.check("cuDriverGetVersion", code)?;
        match version {
            OLDEST.. => Ok(driver),
            _ => Err(Unavailable::OldDriver { major: version / 1000, minor: version % 1000 / 10 }),
        }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: the pointer is valid for the call.
        let known = unsafe { (self.functions.error_string)(code, &mut text) } == 0;
        let message = match known && !text.is_null() {
            // SAFETY: it is a constant of the driver.
            true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            false => "unknown".to_owned(),
        };
        Err(DriverError { call, code, message })
    }
}

/// One GPU, with the context that libtorch uses too.
#[derive(Debug)]
pub(super) struct Gpu {
    driver: &'static Driver,
    context: Handle,
    pub(super) capability: (i32, i32),
    pub(super) multiprocessors: u32,
}

// SAFETY: contexts, modules and functions of the driver may be used by all threads.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// A kernel of a module that stays loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function {
    handle: Handle,
    /// Blocks that a multiprocessor runs at a time.
    pub(super) blocks: u32,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for Function {}
// SAFETY: as for `Gpu`.
unsafe impl Sync for Function {}

/// A module that stays loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Module(Handle);

// SAFETY: as for `Gpu`.
unsafe impl Send for Module {}
// SAFETY: as for `Gpu`.
unsafe impl Sync for Module {}

/// A stream of libtorch's; null is the default stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream(pub(super) Handle);

// SAFETY: streams may be used by all threads.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Gpu {
    /// The device that libtorch counts as number `ordinal`.
    pub(super) fn new(ordinal: usize) -> Result<Self, Unavailable> {
        let driver = Driver::get()?;
        let functions = &driver.functions;
        let mut device = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (functions.device)(&mut device, ordinal as c_int) };
        driver.check("cuDeviceGet", code)?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the pointer is valid for the call.
            let code = unsafe { (functions.attribute)(&mut value, attribute, device) };
            driver.check("cuDeviceGetAttribute", code).map(|()| value)
        };
        let capability = (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?);
        let multiprocessors = attribute(MULTIPROCESSORS)?.max(1) as u32;
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is valid for the call. The context is never released: it is the one
        // that libtorch keeps to the end of the process.
        let code = unsafe { (functions.retain_context)(&mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Self { driver, context, capability, multiprocessors })
    }

    /// Calls `work` while the device's context is the thread's.
    fn within<T>(&self, work: impl FnOnce(&Functions) -> T) -> Result<T, DriverError> {
        let functions = &self.driver.functions;
        // SAFETY: the context is the device's, retained for good.
        self.driver.check("cuCtxPushCurrent", unsafe { (functions.push_context)(self.context) })?;
        let done = work(functions);
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is valid for the call, and the context was pushed above.
        let code = unsafe { (functions.pop_context)(&mut context) };
        self.driver.check("cuCtxPopCurrent", code).map(|()| done)
    }

    /// Loads a cubin, or PTX that ends with a zero.
    pub(super) fn load(&self, image: &[u8]) -> Result<Module, DriverError> {
        let mut module = ptr::null_mut();
        // SAFETY: the pointers are valid for the call, and the driver knows a cubin's end by its
        // header, and that of PTX by its zero, which `sources::Image` sees to.
        let code = self.within(|f| unsafe { (f.load)(&mut module, image.as_ptr().cast()) })?;
        self.driver.check("cuModuleLoadData", code).map(|()| Module(module))
    }

    /// Finds a kernel.
    pub(super) fn function(&self, module: Module, name: &str) -> Result<Function, DriverError> {
        let name = CString::new(name).unwrap_or_default();
        let (mut handle, mut blocks) = (ptr::null_mut(), 0);
        // SAFETY: the pointers are valid for the call, and the module stays loaded.
        let code =
            self.within(|f| unsafe { (f.function)(&mut handle, module.0, name.as_ptr()) })?;
        self.driver.check("cuModuleGetFunction", code)?;
        // SAFETY: as above.
        let code =
            self.within(|f| unsafe { (f.blocks)(&mut blocks, handle, THREADS as c_int, 0) })?;
        self.driver.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(Function { handle, blocks: blocks.max(1) as u32 })
    }

    /// Launches a kernel and does not wait for it.
    ///
    /// # Safety
    ///
    /// The arguments point to values of the types of the kernel's parameters; what these point to
    /// is memory of the device that nobody else uses before the kernel has run.
    pub(super) unsafe fn launch(
        &self,
        function: Function,
        blocks: u32,
        stream: Stream,
        arguments: &mut [Handle],
    ) -> Result<(), DriverError> {
        let arguments = arguments.as_mut_ptr();
        // SAFETY: the caller answers for the arguments, which the driver copies; function and
        // stream are valid for the life of the process.
        let code = self.within(|f| unsafe {
            let (function, stream) = (function.handle, stream.0);
            (f.launch)(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, ptr::null_mut())
        })?;
        self.driver.check("cuLaunchKernel", code)
    }
}
