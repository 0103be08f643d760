//! Unpacks what is kept of a wheel.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use zip::ZipArchive;

use super::wheels::Wheel;

/// Unpacks what is kept of a wheel into `folder`, and shows how far it got.
pub(super) fn unpack(wheel: &Wheel, archive: &Path, folder: &Path) -> Result<()> {
    let damaged = || format!("{} cannot be unpacked", archive.display());
    let file = File::open(archive).with_context(damaged)?;
    let mut archive = ZipArchive::new(BufReader::new(file)).with_context(damaged)?;

    let mut kept = Vec::new();
    let mut bytes = 0;
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index).with_context(damaged)?;
        if let Some(destination) = wheel.keeps.destination(&member.name().with_context(damaged)?) {
            kept.push((index, folder.join(destination)));
            bytes += member.size();
        }
    }

    eprintln!("unpacking {} of {}", HumanBytes(bytes), wheel.file);
    let progress = ProgressBar::new(bytes).with_style(style());
    for (index, destination) in kept {
        let cannot = || format!("cannot write {}", destination.display());
        let mut member = progress.wrap_read(archive.by_index(index).with_context(damaged)?);
        if let Some(parent) = destination.parent() {
            fs::create_dir_all(parent).with_context(cannot)?;
        }
        let mut file = File::create(&destination).with_context(cannot)?;
        io::copy(&mut member, &mut file).with_context(cannot)?;
    }
    progress.finish_and_clear();
    Ok(())
}

/// Gives the linker the `libtorch` it asks for where no wheel brings one: without CUDA it adds nothing to `libtorch_cpu`.
#[cfg(unix)]
pub(super) fn link_libtorch(folder: &Path) -> Result<()> {
    let lib = folder.join("lib");
    let link = lib.join("libtorch.so");
    if lib.join("libtorch_cpu.so").exists() && !link.exists() {
        std::os::unix::fs::symlink("libtorch_cpu.so", &link)
            .with_context(|| format!("cannot create {}", link.display()))?;
    }
    Ok(())
}

/// Does nothing: no wheels are offered where there are no symbolic links.
#[cfg(not(unix))]
pub(super) fn link_libtorch(_folder: &Path) -> Result<()> {
    Ok(())
}

/// Returns the look of the progress bar.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
