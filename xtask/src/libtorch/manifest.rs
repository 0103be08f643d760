//! The list that makes a libtorch folder count as complete: which wheels it came from, and how long its files are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::wheels::Wheel;

/// The list, in the folder of libtorch.
const MANIFEST: &str = "tch-amp-manifest.txt";
/// The file that torch-sys reads libtorch's version from.
const BUILD_VERSION: &str = "build-version";
/// The header that stands for all.
const HEADER: &str = "include/torch/csrc/api/include/torch/torch.h";

/// Writes the list of a folder that has just been filled, and the version.
///
/// Fails when a library that a wheel should have brought is not there.
pub(super) fn write(folder: &Path, version: &str, wheels: &[Wheel]) -> Result<()> {
    let mut text = "# cargo xtask filled this folder; it fills it anew when a file below has another length.\n".to_owned();
    for wheel in wheels {
        text.push_str(&format!("wheel {} {}\n", wheel.sha256, wheel.file));
    }
    for path in files(folder, wheels)? {
        let length = fs::metadata(folder.join(&path))
            .with_context(|| format!("the wheels brought no {path}"))?
            .len();
        text.push_str(&format!("file {length} {path}\n"));
    }
    for (name, text) in [(BUILD_VERSION, format!("{version}\n")), (MANIFEST, text)] {
        fs::write(folder.join(name), text)
            .with_context(|| format!("cannot write {name} to {}", folder.display()))?;
    }
    Ok(())
}

/// Tells whether a folder holds all that was unpacked into it, from just these wheels.
pub(super) fn is_complete(folder: &Path, wheels: &[Wheel]) -> bool {
    let Ok(text) = fs::read_to_string(folder.join(MANIFEST)) else {
        return false;
    };
    let mut unpacked = BTreeSet::new();
    let mut listed = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["wheel", sha256, _] => {
                unpacked.insert(sha256);
            }
            ["file", length, path] => {
                let present = fs::metadata(folder.join(path)).map(|metadata| metadata.len());
                if present.ok() != length.parse().ok() {
                    return false;
                }
                listed.insert(path);
            }
            _ => return false,
        }
    }
    let pinned: BTreeSet<_> = wheels.iter().map(|wheel| wheel.sha256).collect();
    unpacked == pinned && required(wheels).all(|path| listed.contains(path.as_str()))
}

/// Returns the files that every folder made of these wheels has.
fn required(wheels: &[Wheel]) -> impl Iterator<Item = String> {
    let libraries =
        wheels.iter().flat_map(|wheel| wheel.keeps.named()).map(|name| format!("lib/{name}"));
    libraries.chain([HEADER.to_owned()])
}

/// Returns the files to list: those required, and whatever else lies in `lib`.
fn files(folder: &Path, wheels: &[Wheel]) -> Result<BTreeSet<String>> {
    let mut files: BTreeSet<_> = required(wheels).collect();
    let lib = folder.join("lib");
    for entry in
        fs::read_dir(&lib).with_context(|| format!("the wheels brought no {}", lib.display()))?
    {
        let name = entry.with_context(|| format!("cannot list {}", lib.display()))?.file_name();
        files.insert(format!("lib/{}", name.display()));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::super::wheels::Keeps;
    use super::*;

    const WHEELS: &[Wheel] = &[Wheel {
        file: "torch-2.13.0-x.whl",
        sha256: "aa",
        keeps: Keeps::HeadersAnd(&["libc10.so"]),
    }];

    fn filled() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let header = folder.path().join(HEADER);
        fs::create_dir_all(header.parent().unwrap()).unwrap();
        fs::write(header, "#pragma once").unwrap();
        fs::create_dir(folder.path().join("lib")).unwrap();
        fs::write(folder.path().join("lib/libc10.so"), "machine code").unwrap();
        folder
    }

    #[test]
    fn a_folder_is_complete_once_the_list_is_written() {
        let folder = filled();
        assert!(!is_complete(folder.path(), WHEELS), "no list yet");
        write(folder.path(), "2.13.0", WHEELS).unwrap();
        assert!(is_complete(folder.path(), WHEELS));
        assert_eq!(fs::read_to_string(folder.path().join(BUILD_VERSION)).unwrap().trim(), "2.13.0");
    }

    #[test]
    fn a_missing_or_shorter_file_makes_it_incomplete() {
        let folder = filled();
        write(folder.path(), "2.13.0", WHEELS).unwrap();
        fs::write(folder.path().join("lib/libc10.so"), "machine").unwrap();
        assert!(!is_complete(folder.path(), WHEELS));
        fs::remove_file(folder.path().join("lib/libc10.so")).unwrap();
        assert!(!is_complete(folder.path(), WHEELS));
    }

    #[test]
    fn other_pins_make_it_incomplete() {
        let folder = filled();
        write(folder.path(), "2.13.0", WHEELS).unwrap();
        let repinned = [Wheel { sha256: "bb", ..WHEELS[0] }];
        assert!(!is_complete(folder.path(), &repinned));
        let more_kept =
            [Wheel { keeps: Keeps::HeadersAnd(&["libc10.so", "libgomp.so.1"]), ..WHEELS[0] }];
        assert!(!is_complete(folder.path(), &more_kept));
    }

    #[test]
    fn a_library_that_the_wheels_do_not_bring_is_an_error() {
        let folder = filled();
        fs::remove_file(folder.path().join("lib/libc10.so")).unwrap();
        assert!(
            write(folder.path(), "2.13.0", WHEELS)
                .unwrap_err()
                .to_string()
                .contains("lib/libc10.so")
        );
    }
}
