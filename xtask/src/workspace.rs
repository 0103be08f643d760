//! Where the project lies on this machine.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folders of the checkout that this command was started from.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the root manifest.
    root: PathBuf,
    /// The folder of build results.
    target: PathBuf,
}

impl Workspace {
    /// Finds the checkout by the manifest that cargo runs this program for.
    pub(crate) fn find() -> Result<Self> {
        let manifest =
            env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest)
            .parent()
            .context("xtask's manifest has no parent folder")?
            .to_path_buf();
        let target = match env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty()) {
            Some(named) => {
                std::path::absolute(named).context("CARGO_TARGET_DIR is not a usable path")?
            }
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// Returns the folder of the root manifest.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the build folder of everything that is built without libtorch, so that it neither waits for the builds
    /// with libtorch nor holds them up.
    pub(crate) fn doc_only_target(&self) -> PathBuf {
        self.target.join("doc-only")
    }

    /// Returns the folder that the demo's plots go to.
    pub(crate) fn demo_dir(&self) -> PathBuf {
        self.target.join("demo")
    }

    /// Returns the folder of the Python packages that tests use.
    pub(crate) fn python_packages(&self) -> PathBuf {
        self.target.join("python")
    }

    /// Returns the folder of the tools that compile CUDA kernels and read what came out.
    pub(crate) fn cuda_tools(&self) -> PathBuf {
        self.target.join("cuda")
    }

    /// Returns the folder of the compiled CUDA kernels.
    pub(crate) fn cubins(&self) -> PathBuf {
        self.target.join("cubins")
    }

    /// Returns the file that tells plain cargo commands where libtorch is.
    pub(crate) fn libtorch_toml(&self) -> PathBuf {
        self.root.join(".cargo").join("libtorch.toml")
    }
}
