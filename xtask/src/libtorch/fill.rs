//! Fills a folder of the cache: lock, download, verify, unpack beside it, and only then put it in place.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cache::Lock;
use super::pip::Pip;
use super::wheels::Wheel;
use super::{Build, download, extract, manifest, pins, source};
use crate::folder;

/// Makes sure that `folder` holds the libtorch of this machine.
pub(super) fn ensure(folder: &Path, build: Build) -> Result<()> {
    // The wheels are linked against glibc.
    let offered = (!cfg!(target_env = "musl")).then(|| pins::wheels_for(build, OS, ARCH)).flatten();
    let wheels = offered.ok_or_else(|| source::not_offered(build))?;
    let filling = Filling { folder, version: build.version(), wheels };
    if filling.is_done() {
        return Ok(());
    }
    let _lock = Lock::acquire(folder.parent().context("the cache folder has no parent")?)?;
    let mut pip = None;
    filling.run(&mut |wheel, into| {
        let pip = match &pip {
            Some(pip) => pip,
            None => pip.insert(Pip::find()?),
        };
        pip.download(wheel, into, &into.join("pip"))
    })
}

/// A folder to fill.
#[derive(Debug)]
struct Filling<'a> {
    /// Where libtorch is to be.
    folder: &'a Path,
    /// Its version.
    version: &'a str,
    /// What it is made of.
    wheels: &'a [Wheel],
}

impl Filling<'_> {
    /// Tells whether there is nothing to do: libtorch is in place and no working files are left.
    fn is_done(&self) -> bool {
        manifest::is_complete(self.folder, self.wheels) && !self.working_folder().exists()
    }

    /// Returns the folder beside the final one that everything unfinished stays in.
    fn working_folder(&self) -> PathBuf {
        self.folder.with_added_extension("partial")
    }

    /// Fills the folder, unless another process did so while this one waited for the lock.
    ///
    /// Whole downloads of a run that was killed are used again; all else that it left is removed. The final folder
    /// appears by one rename at the end.
    fn run(&self, fetch: &mut dyn FnMut(&Wheel, &Path) -> Result<()>) -> Result<()> {
        let working = self.working_folder();
        if !manifest::is_complete(self.folder, self.wheels) {
            let downloads = working.join("wheels");
            let tree = working.join("tree");
            self.clear_leftovers()?;
            fs::create_dir_all(&downloads)
                .with_context(|| format!("cannot create {}", downloads.display()))?;
            if self.folder.exists() {
                eprintln!("{} is incomplete, or of other files", self.folder.display());
            }
            eprintln!(
                "fetching libtorch {} into {}, once for all projects",
                self.version,
                self.folder.display()
            );

            let mut archives = Vec::new();
            for wheel in self.wheels {
                archives.push((wheel, download::verified(wheel, &downloads, fetch)?));
            }
            for (wheel, archive) in archives {
                extract::unpack(wheel, &archive, &tree)?;
            }
            extract::link_libtorch(&tree)?;
            manifest::write(&tree, self.version, self.wheels)?;
            self.put_in_place(&tree)?;
            eprintln!("libtorch {} is in {}", self.version, self.folder.display());
        }
        folder::remove(&working)
    }

    /// Removes what earlier runs left half done; whole downloads stay.
    fn clear_leftovers(&self) -> Result<()> {
        let working = self.working_folder();
        folder::remove(&working.join("tree"))?;
        folder::remove(&working.join("replaced"))?;
        let Ok(entries) = fs::read_dir(working.join("wheels")) else {
            return Ok(());
        };
        for entry in entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir()) {
            folder::remove(&entry.path())?;
        }
        Ok(())
    }

    /// Moves the finished tree to where libtorch is to be, and an incomplete folder out of its way.
    fn put_in_place(&self, tree: &Path) -> Result<()> {
        if self.folder.exists() {
            let replaced = self.working_folder().join("replaced");
            fs::rename(self.folder, &replaced)
                .with_context(|| format!("cannot move {} aside", self.folder.display()))?;
        }
        fs::rename(tree, self.folder)
            .with_context(|| format!("cannot create {}", self.folder.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use anyhow::bail;
    use sha2::{Digest, Sha256};
    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::super::wheels::Keeps;
    use super::*;

    const HEADER: &str = "include/torch/csrc/api/include/torch/torch.h";

    /// Returns a small torch wheel, and the pin that fits it.
    fn torch() -> (Vec<u8>, Wheel) {
        let mut archive = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, text) in [
            ("torch/include/torch/csrc/api/include/torch/torch.h", "#pragma once"),
            ("torch/lib/libtorch_cpu.so", "machine code"),
            ("torch/lib/libtorch_python.so", "not wanted"),
        ] {
            let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
            archive.start_file(name, stored).unwrap();
            archive.write_all(text.as_bytes()).unwrap();
        }
        let bytes = archive.finish().unwrap().into_inner();
        (bytes.clone(), pin(&bytes))
    }

    /// Returns a pin for these bytes.
    fn pin(bytes: &[u8]) -> Wheel {
        let sha256: String =
            Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Wheel {
            file: "torch-2.13.0-cp312-cp312-any.whl",
            sha256: sha256.leak(),
            keeps: Keeps::HeadersAnd(&["libtorch_cpu.so"]),
        }
    }

    /// Serves these bytes for every wheel.
    fn serve(bytes: &[u8]) -> impl FnMut(&Wheel, &Path) -> Result<()> {
        move |wheel, into| Ok(fs::write(into.join(wheel.file), bytes)?)
    }

    #[test]
    fn a_filled_folder_has_what_is_kept_and_nothing_is_left_beside_it() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("libtorch-2.13.0-cpu");
        let (bytes, wheel) = torch();
        let filling = Filling { folder: &folder, version: "2.13.0", wheels: &[wheel] };

        filling.run(&mut serve(&bytes)).unwrap();

        assert!(filling.is_done());
        assert_eq!(fs::read_to_string(folder.join(HEADER)).unwrap(), "#pragma once");
        assert_eq!(fs::read_to_string(folder.join("lib/libtorch.so")).unwrap(), "machine code");
        assert!(!folder.join("lib/libtorch_python.so").exists());
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_download_leaves_no_folder_and_the_next_run_goes_on() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("libtorch");
        let (bytes, wheel) = torch();
        let second = Wheel { file: "second-1.0-py3-none-any.whl", ..wheel };
        let filling = Filling { folder: &folder, version: "2.13.0", wheels: &[wheel, second] };

        let mut first_only = |wheel: &Wheel, into: &Path| match wheel.file {
            "second-1.0-py3-none-any.whl" => bail!("no network"),
            file => Ok(fs::write(into.join(file), &bytes)?),
        };
        assert_eq!(filling.run(&mut first_only).unwrap_err().to_string(), "no network");
        assert!(!folder.exists());

        let mut second_only = |wheel: &Wheel, into: &Path| match wheel.file {
            "second-1.0-py3-none-any.whl" => Ok(fs::write(into.join(wheel.file), &bytes)?),
            file => bail!("{file} is fetched again"),
        };
        filling.run(&mut second_only).unwrap();
        assert!(filling.is_done());
    }

    #[test]
    fn a_half_unpacked_tree_of_a_killed_run_is_not_used() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("libtorch");
        let (bytes, wheel) = torch();
        let filling = Filling { folder: &folder, version: "2.13.0", wheels: &[wheel] };
        let tree = filling.working_folder().join("tree");
        fs::create_dir_all(tree.join("lib")).unwrap();
        fs::write(tree.join("lib/libhalf.so"), "half").unwrap();
        let incoming = filling.working_folder().join("wheels/incoming-1");
        fs::create_dir_all(&incoming).unwrap();
        fs::write(incoming.join(wheel.file), &bytes[..10]).unwrap();
        assert!(!filling.is_done());

        filling.run(&mut serve(&bytes)).unwrap();

        assert!(filling.is_done());
        assert!(!folder.join("lib/libhalf.so").exists());
    }

    #[test]
    fn an_archive_that_breaks_while_unpacking_leaves_no_folder() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("libtorch");
        let (mut bytes, _) = torch();
        let machine_code = bytes.windows(12).position(|window| window == b"machine code").unwrap();
        bytes[machine_code] = b'M';
        let filling = Filling { folder: &folder, version: "2.13.0", wheels: &[pin(&bytes)] };

        assert!(filling.run(&mut serve(&bytes)).is_err());

        assert!(!folder.exists());
        assert!(!filling.is_done());
    }

    #[test]
    fn a_folder_that_lost_a_file_is_filled_anew() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("libtorch");
        let (bytes, wheel) = torch();
        let filling = Filling { folder: &folder, version: "2.13.0", wheels: &[wheel] };
        filling.run(&mut serve(&bytes)).unwrap();
        fs::remove_file(folder.join("lib/libtorch_cpu.so")).unwrap();
        assert!(!filling.is_done());

        filling.run(&mut serve(&bytes)).unwrap();

        assert!(filling.is_done());
        assert!(!filling.working_folder().exists());
    }

    #[test]
    fn what_another_process_finished_meanwhile_is_not_fetched_again() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("libtorch");
        let (bytes, wheel) = torch();
        let filling = Filling { folder: &folder, version: "2.13.0", wheels: &[wheel] };
        filling.run(&mut serve(&bytes)).unwrap();

        filling.run(&mut |_, _| bail!("fetched again")).unwrap();
    }
}
