//! Makes sure of libtorch: the user's own if there is one, else a copy in the user's cache folder, filled once.

mod cache;
mod cargo_config;
mod checksum;
mod download;
mod extract;
mod fill;
mod manifest;
mod pins;
mod pip;
mod source;
mod wheels;

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::workspace::Workspace;

use self::source::{Environment, Source};

/// Says what to do where libtorch cannot be fetched.
const BY_HAND: &str = "\
To go without the download, do one of these by hand and run the command again:
  - unpack libtorch 2.13.0 and set LIBTORCH=/path/to/libtorch (the folder with include/ and lib/), or
  - install torch 2.13.0 for the `python3` on your PATH and set LIBTORCH_USE_PYTORCH=1.";

/// Which libtorch is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// The libraries that run on the CPU.
    Cpu,
    /// Those and the CUDA ones.
    Cuda,
    /// Those of torch 2.11.0, to link programs with that run elsewhere.
    LinkOnly,
}

impl Build {
    /// Returns the version of libtorch.
    fn version(self) -> &'static str {
        match self {
            Self::Cpu | Self::Cuda => wheels::TORCH_VERSION,
            Self::LinkOnly => "2.11.0",
        }
    }
}

/// A libtorch that can be built against.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Libtorch {
    /// The one in this folder.
    Folder(PathBuf),
    /// The one that the Python package `torch` brings; torch-sys asks Python where it is.
    Pytorch,
}

impl Libtorch {
    /// Finds the user's libtorch, or fetches it into the cache and points plain cargo commands there.
    pub(crate) fn ensure(workspace: &Workspace, build: Build) -> Result<Self> {
        let toml = workspace.libtorch_toml();
        let environment = Environment::read(&toml)?;
        let cached = cache::root().map(|root| root.join(build.folder()));
        match environment.source(cached.as_deref().ok()) {
            Source::Pytorch => {
                source::check_pytorch()?;
                Ok(Self::Pytorch)
            }
            Source::User(folder) => {
                source::check_user_folder(&folder, build)?;
                Ok(Self::Folder(folder))
            }
            Source::Cache => {
                let folder = cached?;
                fill::ensure(&folder, build)?;
                cargo_config::write(&toml, &folder)?;
                Ok(Self::Folder(folder))
            }
        }
    }

    /// Fetches the libtorch that programs for another machine are linked with; plain cargo commands keep theirs.
    pub(crate) fn to_link_with() -> Result<Self> {
        let folder = cache::root()?.join(Build::LinkOnly.folder());
        fill::ensure(&folder, Build::LinkOnly)?;
        Ok(Self::Folder(folder))
    }

    /// Returns the folder to name in `LIBTORCH`, if that is how it is found.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Pytorch => None,
        }
    }
}

impl Display for Libtorch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Pytorch => {
                f.write_str("the one of the Python package torch (LIBTORCH_USE_PYTORCH is set)")
            }
        }
    }
}
