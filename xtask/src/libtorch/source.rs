//! Decides whose libtorch to use, and checks one that the user names.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::wheels::TORCH_VERSION;
use super::{BY_HAND, Build, cargo_config};

/// What this process was told about libtorch.
#[derive(Debug, Default)]
pub(super) struct Environment {
    /// The value of `LIBTORCH`, from the user or from `.cargo/libtorch.toml`: cargo hands on both alike.
    libtorch: Option<PathBuf>,
    /// Whether `LIBTORCH_USE_PYTORCH` is set; like torch-sys, to anything.
    use_pytorch: bool,
    /// The text of `.cargo/libtorch.toml`.
    toml: Option<String>,
}

/// Where libtorch is to come from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The Python package `torch`.
    Pytorch,
    /// A folder that the user named.
    User(PathBuf),
    /// Our own cache.
    Cache,
}

impl Environment {
    /// Reads the variables and the file.
    pub(super) fn read(toml: &Path) -> Result<Self> {
        let text = match fs::read_to_string(toml) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", toml.display()));
            }
        };
        Ok(Self {
            libtorch: set("LIBTORCH").map(PathBuf::from),
            use_pytorch: env::var_os("LIBTORCH_USE_PYTORCH").is_some(),
            toml: text,
        })
    }

    /// Decides where libtorch comes from; `cached` is the folder that our cache keeps, or would keep, it in.
    ///
    /// `LIBTORCH` is ours when it names that folder, or when `.cargo/libtorch.toml` is word for word what we write for
    /// its value: for another build or another cache folder of an earlier run. A file edited by hand counts as the
    /// user's.
    pub(super) fn source(&self, cached: Option<&Path>) -> Source {
        match &self.libtorch {
            _ if self.use_pytorch => Source::Pytorch,
            Some(folder) if Some(folder.as_path()) != cached && !self.is_from_toml(folder) => {
                Source::User(folder.clone())
            }
            _ => Source::Cache,
        }
    }

    /// Tells whether the file of an earlier run names this folder.
    fn is_from_toml(&self, folder: &Path) -> bool {
        let ours = folder.to_str().map(cargo_config::text);
        ours.is_some() && ours == self.toml
    }
}

/// Fails unless the folder that the user named has the headers and libraries needed.
pub(super) fn check_user_folder(folder: &Path, build: Build) -> Result<()> {
    let headers =
        set("LIBTORCH_INCLUDE").map_or_else(|| folder.to_path_buf(), PathBuf::from).join("include");
    let libraries =
        set("LIBTORCH_LIB").map_or_else(|| folder.to_path_buf(), PathBuf::from).join("lib");
    let header = headers.join("torch/csrc/api/include/torch/torch.h");
    if !header.is_file() {
        return Err(unusable(folder, &format!("there is no {}", header.display())));
    }
    if !has_library(&libraries, "torch_cpu") {
        return Err(unusable(folder, &format!("{} holds no libtorch_cpu", libraries.display())));
    }
    if build == Build::Cuda && !has_library(&libraries, "torch_cuda") {
        return Err(unusable(
            folder,
            &format!("--cuda needs libtorch_cuda, and {} holds none", libraries.display()),
        ));
    }
    Ok(())
}

/// Fails unless Python has the right torch: torch-sys would fail too, but only print what Python did not.
pub(super) fn check_pytorch() -> Result<()> {
    if set("LIBTORCH_BYPASS_VERSION_CHECK").is_some() {
        return Ok(());
    }
    // The same choice as torch-sys makes.
    let python = if env::var_os("VIRTUAL_ENV").is_some() { "python" } else { "python3" };
    let output = Command::new(python)
        .args(["-c", "import importlib.metadata; print(importlib.metadata.version('torch'))"])
        .output()
        .with_context(|| format!("LIBTORCH_USE_PYTORCH is set, but `{python}` does not run"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        bail!(
            "LIBTORCH_USE_PYTORCH is set, but `{python}` has no torch. Install torch {TORCH_VERSION} for it, or unset \
             LIBTORCH_USE_PYTORCH to have libtorch fetched."
        );
    }
    if version.split('+').next() != Some(TORCH_VERSION) {
        bail!(
            "LIBTORCH_USE_PYTORCH is set, but `{python}` has torch {version} where {TORCH_VERSION} is needed. Install \
             that, or unset LIBTORCH_USE_PYTORCH to have libtorch fetched, or set LIBTORCH_BYPASS_VERSION_CHECK=1 to \
             try all the same."
        );
    }
    Ok(())
}

/// Reads a variable; an empty one counts as not set.
fn set(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Tells whether the folder holds the shared or static library of this name.
fn has_library(folder: &Path, name: &str) -> bool {
    ["so", "dylib", "a"].iter().any(|ending| folder.join(format!("lib{name}.{ending}")).is_file())
}

/// Says what is wrong with the user's libtorch and what to do.
fn unusable(folder: &Path, reason: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "LIBTORCH={} is set, but it is not a libtorch that can be used: {reason}. Set LIBTORCH to the folder of \
         libtorch {TORCH_VERSION} that holds include/ and lib/, or unset it to have libtorch fetched.",
        folder.display()
    )
}

/// Says that this machine has no pinned libtorch and what to do.
pub(super) fn not_offered(build: Build) -> anyhow::Error {
    let which = match build {
        Build::Cpu => {
            "libtorch is fetched for Linux (x86-64 and aarch64, with glibc) and macOS (arm64)"
        }
        Build::Cuda => "libtorch with CUDA is fetched for Linux on x86-64 (with glibc)",
        Build::LinkOnly => "programs for a GPU machine are built on Linux on x86-64 (with glibc)",
    };
    anyhow::anyhow!(
        "{which} only, and this machine is {} on {}.\n{BY_HAND}",
        env::consts::OS,
        env::consts::ARCH
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHED: &str = "/home/ada/.cache/tch-amp/libtorch-2.13.0-cpu";

    fn source(libtorch: Option<&str>, use_pytorch: bool, toml_names: Option<&str>) -> Source {
        let environment = Environment {
            libtorch: libtorch.map(PathBuf::from),
            use_pytorch,
            toml: toml_names.map(cargo_config::text),
        };
        environment.source(Some(Path::new(CACHED)))
    }

    #[test]
    fn nothing_set_means_the_cache() {
        assert_eq!(source(None, false, None), Source::Cache);
        assert_eq!(source(None, false, Some(CACHED)), Source::Cache);
    }

    #[test]
    fn a_value_from_our_own_file_is_not_the_users() {
        assert_eq!(source(Some(CACHED), false, Some(CACHED)), Source::Cache);
    }

    #[test]
    fn a_value_from_our_file_of_another_build_or_cache_folder_is_not_the_users() {
        let other = "/elsewhere/tch-amp/libtorch-2.13.0-cuda";
        assert_eq!(source(Some(other), false, Some(other)), Source::Cache);
    }

    #[test]
    fn the_cache_folder_named_by_hand_is_still_ours_to_fill() {
        assert_eq!(source(Some(CACHED), false, None), Source::Cache);
    }

    #[test]
    fn a_value_that_our_file_does_not_hold_is_the_users() {
        let own = Source::User(PathBuf::from("/opt/libtorch"));
        assert_eq!(source(Some("/opt/libtorch"), false, None), own);
        assert_eq!(source(Some("/opt/libtorch"), false, Some(CACHED)), own);
    }

    #[test]
    fn a_file_edited_by_hand_is_the_users() {
        let environment = Environment {
            libtorch: Some(PathBuf::from("/opt/libtorch")),
            use_pytorch: false,
            toml: Some("[env]\nLIBTORCH = '/opt/libtorch'\n".to_owned()),
        };
        let source = environment.source(Some(Path::new(CACHED)));
        assert_eq!(source, Source::User(PathBuf::from("/opt/libtorch")));
    }

    #[test]
    fn pytorch_goes_before_all_else() {
        assert_eq!(source(None, true, None), Source::Pytorch);
        assert_eq!(source(Some("/opt/libtorch"), true, Some(CACHED)), Source::Pytorch);
    }

    #[test]
    fn a_folder_without_headers_or_libraries_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let message = |build| check_user_folder(folder.path(), build).unwrap_err().to_string();
        assert!(message(Build::Cpu).contains("torch/torch.h"), "{}", message(Build::Cpu));

        let headers = folder.path().join("include/torch/csrc/api/include/torch");
        fs::create_dir_all(&headers).unwrap();
        fs::write(headers.join("torch.h"), "").unwrap();
        assert!(message(Build::Cpu).contains("no libtorch_cpu"), "{}", message(Build::Cpu));

        fs::create_dir(folder.path().join("lib")).unwrap();
        fs::write(folder.path().join("lib/libtorch_cpu.so"), "").unwrap();
        check_user_folder(folder.path(), Build::Cpu).unwrap();
        assert!(message(Build::Cuda).contains("libtorch_cuda"), "{}", message(Build::Cuda));
    }
}
