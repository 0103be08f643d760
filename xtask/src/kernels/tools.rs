//! NVRTC and the readers of compiled kernels, from NVIDIA's wheels.

use std::env::{self, consts};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::nvrtc::Nvrtc;
use crate::python;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// The wheels; pip compares each with its SHA-256.
const REQUIREMENTS: &str = include_str!("requirements.txt");

/// The folder that the wheels are unpacked to.
#[derive(Debug)]
pub(crate) struct Tools {
    /// Where the wheels have `bin` and `lib`.
    cuda: PathBuf,
}

impl Tools {
    /// Makes sure of the wheels in the build folder; `None`, and a line that says so, where that is not possible.
    pub(crate) fn ensure(workspace: &Workspace) -> Result<Option<Self>> {
        let offered = consts::OS == "linux" && matches!(consts::ARCH, "x86_64" | "aarch64");
        if !offered || cfg!(target_env = "musl") {
            skipped("NVIDIA has no wheels of NVRTC for this system");
            return Ok(None);
        }
        let folder = workspace.cuda_tools();
        let list = folder.join("requirements.txt");
        if fs::read_to_string(&list).ok().as_deref() != Some(REQUIREMENTS) {
            let python = match python::find() {
                Ok(python) => python,
                Err(reason) => {
                    skipped(&reason);
                    return Ok(None);
                }
            };
            install(python, &folder, &list)?;
        }
        Ok(Some(Self { cuda: folder.join("nvidia/cu13") }))
    }

    /// Makes sure of the wheels if that is possible here.
    pub(crate) fn if_possible(workspace: &Workspace) -> Option<Self> {
        Self::ensure(workspace).unwrap_or_else(|error| {
            skipped(&error.to_string());
            None
        })
    }

    /// Tells a test command where NVRTC is.
    pub(crate) fn for_tests(&self, cargo: Cargo) -> Cargo {
        cargo.env("TCH_AMP_NVRTC", self.cuda.join("lib"))
    }

    /// Loads NVRTC.
    pub(super) fn nvrtc(&self) -> Result<Nvrtc> {
        // NVRTC looks for the first by its bare name, and finds it where it is loaded already.
        let names = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"];
        let paths = names.map(|name| self.cuda.join("lib").join(name));
        Nvrtc::open(&paths)
            .with_context(|| format!("NVRTC in {} does not load", self.cuda.display()))
    }

    /// Returns what `cuobjdump` tells about a cubin: resources and instructions.
    pub(super) fn dump(&self, cubin: &Path) -> Result<String> {
        let bin = self.cuda.join("bin");
        let output = Command::new(bin.join("cuobjdump"))
            .args(["-res-usage", "-sass"])
            .arg(cubin)
            .env("PATH", with_path(bin)?)
            .output()
            .context("`cuobjdump` could not be started")?;
        if !output.status.success() {
            bail!(
                "`cuobjdump` cannot read {}: {}",
                cubin.display(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        String::from_utf8(output.stdout).context("`cuobjdump` printed no text")
    }
}

/// Installs the wheels into an empty folder; the list of them goes there last.
fn install(python: &str, folder: &Path, list: &Path) -> Result<()> {
    let wanted = folder.with_added_extension("txt");
    let cannot = |path: &Path| format!("cannot write {}", path.display());
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).with_context(|| cannot(parent))?;
    }
    fs::write(&wanted, REQUIREMENTS).with_context(|| cannot(&wanted))?;
    eprintln!("fetching NVRTC and cuobjdump into {}", folder.display());
    let options = ["--no-deps", "--require-hashes", "--requirement"];
    let arguments = options.into_iter().map(OsString::from).chain([wanted.clone().into()]);
    python::install(python, folder, arguments)?;
    fs::rename(&wanted, list).with_context(|| cannot(list))
}

/// Puts a folder before those of the PATH: `cuobjdump` looks for `nvdisasm` there.
fn with_path(folder: PathBuf) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths([folder].into_iter().chain(env::split_paths(&path)))
        .context("the build folder's path cannot be in the PATH")
}

/// Says that compiled kernels are not looked at.
fn skipped(reason: &str) {
    eprintln!("skipped: what compiles the CUDA kernels: {reason}");
}
