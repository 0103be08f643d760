//! The operations as CUDA kernels of our own (`kernels/`), for GPUs.
//!
//! Nothing of CUDA is needed to build: the driver and the compiler are looked for when a tensor is
//! on a GPU for the first time. Kernels are launched on libtorch's current stream.

mod cache;
mod driver;
mod gradients;
mod lamb;
mod launch;
#[allow(dead_code, unreachable_pub, reason = "the emulator shares it")]
mod layout;
mod nvrtc;
mod sources;
mod table;
mod update;

use std::{
    collections::{BTreeMap, HashMap},
    ffi::c_void,
    fmt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use tch::{Device, TchError};

use cache::Cache;
pub use driver::DriverError;
use driver::{Driver, Function, Gpu, Module, Stream};
pub(super) use gradients::{accumulate, check, scale};
pub(crate) use layout::{AdagradSettings, AdamSettings, LambSettings, SgdSettings};
use nvrtc::Nvrtc;
pub(crate) use sources::{ADAGRAD, ADAM, SGD, Source};
pub(crate) use table::Tables;
pub(crate) use update::{DeviceSettings, Row, Rows, RuleKernels, update};

use crate::libtorch;

/// Why a device runs plain libtorch operations instead of kernels of this crate. Training works all
/// the same, only slower.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There are kernels for the CPU and for CUDA devices only.
    #[error("there are kernels for the CPU and for CUDA devices only")]
    OtherDevice,
    /// NVIDIA's driver could not be loaded.
    #[error("NVIDIA's driver could not be loaded: {0}")]
    NoDriver(String),
    /// The driver is too old for the kernels.
    #[error("NVIDIA's driver is made for CUDA {major}.{minor}: the kernels need 12.1 or later")]
    OldDriver {
        /// The version of CUDA it is made for.
        major: i32,
        /// The same.
        minor: i32,
    },
    /// The GPU is too old for the kernels.
    #[error("the GPU has compute capability {major}.{minor}: the kernels need 7.5 or later")]
    OldDevice {
        /// Its compute capability.
        major: i32,
        /// The same.
        minor: i32,
    },
    /// The installed libtorch is one without CUDA, or could not load its CUDA library.
    #[error("libtorch has no CUDA here: its `libtorch_cuda` could not be loaded")]
    NoLibtorchCuda,
    /// The driver refused something.
    #[error("NVIDIA's driver: {0}")]
    Driver(#[from] DriverError),
}

/// The kernels of one device.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    gpu: Gpu,
    modules: Mutex<BTreeMap<&'static str, Loaded>>,
    functions: Mutex<HashMap<String, Function>>,
}

/// The kernels of a file.
type Loaded = Result<(Module, Origin), DriverError>;

/// Where compiled kernels come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Compiled by NVRTC of this version, now or by an earlier process.
    Nvrtc(i32, i32),
    /// Compiled by the driver from the assembly that comes with the crate.
    Ptx,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvrtc(major, minor) => write!(f, "compiled by NVRTC {major}.{minor}"),
            Self::Ptx => f.write_str("compiled by the driver"),
        }
    }
}

impl Kernels {
    /// The kernels for tensors on a device; `None`, after a warning, where there are none.
    pub(crate) fn of(device: Device) -> Option<&'static Self> {
        Self::find(device).ok()
    }

    /// The same with the reason.
    pub(crate) fn find(device: Device) -> Result<&'static Self, Unavailable> {
        static FOUND: Mutex<Vec<(Device, Result<&'static Kernels, Unavailable>)>> =
            Mutex::new(Vec::new());
        let ordinal = match device {
            Device::Cuda(ordinal) => ordinal,
            Device::Cpu if runs_on_cpu() => 0,
            _ => return Err(Unavailable::OtherDevice),
        };
        let mut found = lock(&FOUND);
        if let Some((_, kernels)) = found.iter().find(|(known, _)| *known == device) {
            return kernels.clone();
        }
        let kernels = Self::new(device, ordinal).map(|kernels| &*Box::leak(Box::new(kernels)));
        if let Err(reason) = &kernels {
            tracing::warn!(
                target: "tch_amp",
                "{device:?} runs libtorch's operations instead of this crate's kernels: {reason}"
            );
        }
        found.push((device, kernels.clone()));
        kernels
    }

    fn new(device: Device, ordinal: usize) -> Result<Self, Unavailable> {
        let gpu = Gpu::new(ordinal)?;
        let (major, minor) = gpu.capability;
        if (major, minor) < (7, 5) {
            return Err(Unavailable::OldDevice { major, minor });
        }
        let kernels = Self {
            device,
            gpu,
            modules: Mutex::new(BTreeMap::new()),
            functions: Mutex::new(HashMap::new()),
        };
        kernels.stream().ok_or(Unavailable::NoLibtorchCuda)?;
        kernels.module(&sources::GRADIENTS)?;
        Ok(kernels)
    }

    /// `sm_90, compiled by NVRTC 13.0`.
    pub(crate) fn describe(&self) -> String {
        let (major, minor) = self.gpu.capability;
        match self.module(&sources::GRADIENTS) {
            Ok((_, origin)) => format!("sm_{major}{minor}, {origin}"),
            Err(error) => error.to_string(),
        }
    }

    /// The stream that libtorch puts this thread's work on the device into.
    fn stream(&self) -> Option<Stream> {
        match self.device {
            Device::Cuda(ordinal) => libtorch::current_stream(ordinal).map(Stream),
            _ => Some(Stream(std::ptr::null_mut())),
        }
    }

    /// The kernels of a file, compiled once.
    fn module(&self, source: &Source) -> Loaded {
        let mut modules = lock(&self.modules);
        modules.entry(source.name).or_insert_with(|| self.load(source)).clone()
    }

    fn load(&self, source: &Source) -> Loaded {
        if let Some(nvrtc) = Nvrtc::find(libtorch::folder().as_deref()) {
            match self.compile(&nvrtc, source) {
                Ok(module) => return Ok((module, Origin::Nvrtc(nvrtc.version.0, nvrtc.version.1))),
                Err(error) => tracing::debug!(
                    target: "tch_amp", "{} is left to the driver to compile: {error}", source.name
                ),
            }
        }
        Ok((self.gpu.load(source.ptx.as_bytes())?, Origin::Ptx))
    }

    /// Loads what NVRTC compiled for this GPU now or earlier.
    fn compile(&self, nvrtc: &Nvrtc, source: &Source) -> Result<Module, String> {
        let (major, minor) = self.gpu.capability;
        let architecture = format!("sm_{major}{minor}");
        let options = nvrtc::options(&architecture);
        let name = format!("{}-{architecture}", source.name);
        let key = format!("NVRTC {:?}\n{}\n{}", nvrtc.version, options.join(" "), source.whole());
        let cache = Cache::of_user();
        let cached = cache.as_ref().and_then(|cache| cache.get(&name, &key));
        if let Some(module) = cached.and_then(|image| self.gpu.load(&image).ok()) {
            return Ok(module);
        }
        let image = nvrtc.compile((source.name, source.text), source.headers, &options)?;
        let module = self.gpu.load(&image).map_err(|error| error.to_string())?;
        if let Some(cache) = cache {
            cache.put(&name, &key, &image);
        }
        Ok(module)
    }

    fn function(&self, source: &Source, name: &str) -> Result<Function, DriverError> {
        if let Some(function) = lock(&self.functions).get(name) {
            return Ok(*function);
        }
        let function = self.gpu.function(self.module(source)?.0, name)?;
        lock(&self.functions).insert(name.to_owned(), function);
        Ok(function)
    }

    /// The most blocks of a kernel that run at a time.
    fn all_blocks(&self, function: Function) -> u32 {
        self.gpu.multiprocessors * function.blocks
    }

    /// Launches a kernel on libtorch's current stream.
    ///
    /// # Safety
    ///
    /// As for [`Gpu::launch`].
    #[allow(unsafe_code, reason = "hands its condition on")]
    unsafe fn launch(
        &self,
        function: Function,
        blocks: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), TchError> {
        let stream = self.stream().ok_or_else(|| torch(Unavailable::NoLibtorchCuda))?;
        // SAFETY: the caller's.
        unsafe { self.gpu.launch(function, blocks, stream, arguments) }.map_err(torch)
    }
}

/// Whether the driver runs kernels on the CPU. Machines without one are not searched for it.
fn runs_on_cpu() -> bool {
    static RUNS: OnceLock<bool> = OnceLock::new();
    *RUNS.get_or_init(|| {
        std::env::var_os(driver::VARIABLE).is_some()
            && Driver::get().is_ok_and(|driver| driver.runs_on_cpu)
    })
}

fn torch(error: impl fmt::Display) -> TchError {
    TchError::Torch(format!("a CUDA kernel of tch-amp: {error}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
