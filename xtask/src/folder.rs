//! Folders that are removed or made anew.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Removes a folder and all in it, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// Makes sure that a folder is there and holds nothing.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    remove(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}
