//! Gets pinned wheels: nothing leaves here that was not compared with its SHA-256.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, bail};

use super::BY_HAND;
use super::checksum::{Verdict, verify_or_remove};
use super::wheels::Wheel;

/// Returns the verified file of a wheel in `folder`: the one that an earlier run left, or else a new download.
///
/// `fetch` puts the wheel into the folder it is given. That folder is this process's own and never the final one, so a
/// download that breaks off is not mistaken for a whole one, even if a killed run's pip still writes. A file with another SHA-256
/// is removed and fetched once more.
pub(super) fn verified(
    wheel: &Wheel,
    folder: &Path,
    fetch: &mut dyn FnMut(&Wheel, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let kept = folder.join(wheel.file);
    if kept.exists() && is_right(wheel, &kept)? {
        eprintln!("{}: downloaded by an earlier run", wheel.file);
        return Ok(kept);
    }
    for _ in 0..2 {
        let incoming = folder.join(format!("incoming-{}", process::id()));
        fs::create_dir_all(&incoming)
            .with_context(|| format!("cannot create {}", incoming.display()))?;
        fetch(wheel, &incoming)?;
        let file = incoming.join(wheel.file);
        if !file.exists() {
            bail!(
                "pip succeeded, but did not bring {}. Does it have a mirror or a setting that changes what it \
                 downloads?\n{BY_HAND}",
                wheel.file
            );
        }
        if is_right(wheel, &file)? {
            fs::rename(&file, &kept)
                .with_context(|| format!("cannot create {}", kept.display()))?;
            fs::remove_dir_all(&incoming)
                .with_context(|| format!("cannot remove {}", incoming.display()))?;
            return Ok(kept);
        }
    }
    bail!(
        "{} came twice with another SHA-256 than the pinned {}, and is not used. A mirror or a proxy may serve another \
         file.\n{BY_HAND}",
        wheel.file,
        wheel.sha256
    )
}

/// Compares a file with its pin; one that differs is removed, and that is said.
fn is_right(wheel: &Wheel, file: &Path) -> Result<bool> {
    match verify_or_remove(file, wheel.sha256)? {
        Verdict::Right => Ok(true),
        Verdict::Wrong { found } => {
            eprintln!(
                "{}: broken download removed (SHA-256 {found}, expected {})",
                wheel.file, wheel.sha256
            );
            Ok(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wheels::Keeps;
    use super::*;

    /// A wheel that holds the three letters "abc" (FIPS 180-2, appendix B.1).
    const ABC: Wheel = Wheel {
        file: "abc-1.0-py3-none-any.whl",
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        keeps: Keeps::EveryLibrary,
    };

    /// Runs `verified` with a registry that serves these contents one after the other.
    fn served(folder: &Path, contents: &[&str]) -> (Result<PathBuf>, usize) {
        let mut served = 0;
        let result = verified(&ABC, folder, &mut |wheel, into| {
            fs::write(into.join(wheel.file), contents[served])?;
            served += 1;
            Ok(())
        });
        (result, served)
    }

    #[test]
    fn a_broken_download_is_fetched_once_more() {
        let folder = tempfile::tempdir().unwrap();
        let (file, times) = served(folder.path(), &["ab", "abc"]);
        assert_eq!(fs::read_to_string(file.unwrap()).unwrap(), "abc");
        assert_eq!(times, 2);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the wheel is left");
    }

    #[test]
    fn a_file_that_is_wrong_twice_is_refused_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (result, times) = served(folder.path(), &["ab", "abcd", "abc"]);
        assert!(result.unwrap_err().to_string().contains("twice"));
        assert_eq!(times, 2);
        assert!(!folder.path().join(ABC.file).exists());
    }

    #[test]
    fn a_whole_file_of_an_earlier_run_is_not_fetched_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(ABC.file), "abc").unwrap();
        let (file, times) = served(folder.path(), &[]);
        assert_eq!(file.unwrap(), folder.path().join(ABC.file));
        assert_eq!(times, 0);
    }

    #[test]
    fn a_broken_file_of_an_earlier_run_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(ABC.file), "a").unwrap();
        let (file, times) = served(folder.path(), &["abc"]);
        assert_eq!(fs::read_to_string(file.unwrap()).unwrap(), "abc");
        assert_eq!(times, 1);
    }

    #[test]
    fn another_file_than_the_pinned_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let result = verified(&ABC, folder.path(), &mut |_, into| {
            Ok(fs::write(into.join("other.whl"), "abc")?)
        });
        assert!(result.unwrap_err().to_string().contains("did not bring"));
    }
}
