//! Checks a downloaded file against its pinned SHA-256.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// What a file turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The file that was pinned.
    Right,
    /// Another one, now removed.
    Wrong {
        /// Its SHA-256 in hexadecimal digits.
        found: String,
    },
}

/// Compares a file with a SHA-256 in hexadecimal digits, and removes the file if it is another one.
pub(super) fn verify_or_remove(file: &Path, expected: &str) -> Result<Verdict> {
    let found = sha256(file).with_context(|| format!("cannot read {}", file.display()))?;
    if found == expected {
        return Ok(Verdict::Right);
    }
    fs::remove_file(file)
        .with_context(|| format!("cannot remove the broken download {}", file.display()))?;
    Ok(Verdict::Wrong { found })
}

/// Computes the SHA-256 of a file in hexadecimal digits.
fn sha256(file: &Path) -> io::Result<String> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(file)?);
    let mut hasher = Sha256::new();
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        hasher.update(bytes);
        let read = bytes.len();
        reader.consume(read);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1: the SHA-256 of "abc".
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_pinned_file_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wheel");
        fs::write(&file, "abc").unwrap();
        assert_eq!(verify_or_remove(&file, ABC).unwrap(), Verdict::Right);
        assert!(file.exists());
    }

    #[test]
    fn another_file_is_refused_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wheel");
        fs::write(&file, "ab").unwrap();
        assert!(
            matches!(verify_or_remove(&file, ABC).unwrap(), Verdict::Wrong { found } if found != ABC)
        );
        assert!(!file.exists());
    }
}
