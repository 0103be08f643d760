//! Where the project lies on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};

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

    /// Returns the folder that is taken to a machine with a GPU.
    pub(crate) fn gpu_dir(&self) -> PathBuf {
        self.target.join("gpu")
    }

    /// Returns the folder that shows on this machine that the other one works.
    pub(crate) fn gpu_check_dir(&self) -> PathBuf {
        self.target.join("gpu-check")
    }

    /// Returns the build folder of the programs for a GPU, which another libtorch is linked to.
    pub(crate) fn gpu_target(&self) -> PathBuf {
        self.target.join("gpu-build")
    }

    /// Copies what is part of the project, and returns the copy; both share build results.
    pub(crate) fn copy(&self, root: PathBuf) -> Result<Self> {
        let list = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output()
            .context("`git` could not be started")?;
        if !list.status.success() {
            bail!("`git ls-files` failed in {}", self.root.display());
        }
        for file in String::from_utf8(list.stdout)
            .context("a file has no name in UTF-8")?
            .split_terminator('\0')
        {
            let (from, to) = (self.root.join(file), root.join(file));
            let cannot = || format!("cannot copy {file} to {}", root.display());
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).with_context(cannot)?;
            }
            // A file that was deleted is listed until that is committed.
            if from.exists() {
                fs::copy(from, to).with_context(cannot)?;
            }
        }
        Ok(Self { root, target: self.target.clone() })
    }

    /// Returns the file that tells plain cargo commands where libtorch is.
    pub(crate) fn libtorch_toml(&self) -> PathBuf {
        self.root.join(".cargo").join("libtorch.toml")
    }
}
