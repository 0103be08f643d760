//! The user's cache folder, and the lock that one process at a time holds while it fills it.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{BY_HAND, Build};

/// Returns the folder that all checkouts of this user share.
pub(super) fn root() -> Result<PathBuf> {
    let root = root_for(env::consts::OS, |name| env::var_os(name));
    root.with_context(|| {
        format!("neither XDG_CACHE_HOME nor HOME names a folder to keep libtorch in.\n{BY_HAND}")
    })
}

/// Returns the cache folder by the rules of the operating system: `~/Library/Caches` on macOS; elsewhere the XDG
/// base directories, where a relative `XDG_CACHE_HOME` counts as not set.
fn root_for(os: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = match os {
        "macos" => absolute("HOME").map(|home| home.join("Library/Caches")),
        _ => {
            absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        }
    };
    Some(caches?.join("tch-amp"))
}

impl Build {
    /// Returns the name of the folder in the cache.
    pub(super) fn folder(self) -> String {
        let kind = match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::LinkOnly => "link-only",
        };
        format!("libtorch-{}-{kind}", self.version())
    }
}

/// The right to fill the cache; it ends when this is dropped, or with the process however that ends.
#[derive(Debug)]
pub(super) struct Lock {
    /// The locked file.
    _file: File,
}

impl Lock {
    /// Waits for the right to fill the cache.
    pub(super) fn acquire(root: &Path) -> Result<Self> {
        fs::create_dir_all(root)
            .with_context(|| format!("cannot create the cache folder {}", root.display()))?;
        let path = root.join("lock");
        let cannot = || format!("cannot lock {}", path.display());
        let file = File::create(&path).with_context(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!(
                    "another process is fetching libtorch into {}: waiting for it",
                    root.display()
                );
                file.lock().with_context(cannot)?;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
        }
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(os: &str, variables: &[(&str, &str)]) -> Option<PathBuf> {
        root_for(os, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn linux_keeps_it_in_the_xdg_cache() {
        let both = [("HOME", "/home/ada"), ("XDG_CACHE_HOME", "/scratch")];
        assert_eq!(root_with("linux", &both), Some(PathBuf::from("/scratch/tch-amp")));
        assert_eq!(root_with("linux", &both[..1]), Some(PathBuf::from("/home/ada/.cache/tch-amp")));
    }

    #[test]
    fn a_relative_or_empty_xdg_cache_is_ignored() {
        for value in ["", "cache"] {
            let root = root_with("linux", &[("HOME", "/home/ada"), ("XDG_CACHE_HOME", value)]);
            assert_eq!(
                root,
                Some(PathBuf::from("/home/ada/.cache/tch-amp")),
                "XDG_CACHE_HOME={value:?}"
            );
        }
    }

    #[test]
    fn macos_keeps_it_in_library_caches() {
        let root = root_with("macos", &[("HOME", "/Users/ada"), ("XDG_CACHE_HOME", "/scratch")]);
        assert_eq!(root, Some(PathBuf::from("/Users/ada/Library/Caches/tch-amp")));
    }

    #[test]
    fn without_a_home_there_is_no_cache() {
        assert_eq!(root_with("linux", &[]), None);
    }

    #[test]
    fn the_lock_is_held_by_one_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let lock = Lock::acquire(root.path()).unwrap();
        let other = File::create(root.path().join("lock")).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(lock);
        other.try_lock().unwrap();
    }
}
