//! The file `.cargo/libtorch.toml`, which tells plain cargo commands where libtorch is.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Returns the text of the file for a folder.
///
/// `force = false` leaves the last word to a `LIBTORCH` in the user's environment.
pub(super) fn text(folder: &str) -> String {
    format!("[env]\nLIBTORCH = {{ value = {}, force = false }}\n", quoted(folder))
}

/// Writes the file, unless it already says the same.
pub(super) fn write(file: &Path, folder: &Path) -> Result<()> {
    let folder = folder.to_str().with_context(|| {
        format!("{} is not UTF-8, which cargo's configuration needs", folder.display())
    })?;
    let text = text(folder);
    if fs::read_to_string(file).is_ok_and(|present| present == text) {
        return Ok(());
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("plain cargo commands find libtorch from now on: {} says where", file.display());
    Ok(())
}

/// Quotes a text as a TOML basic string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            _ if character.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(character)))
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_the_folder_and_yields_to_the_environment() {
        let expected = "[env]\nLIBTORCH = { value = \"/c/libtorch-2.13.0-cpu\", force = false }\n";
        assert_eq!(text("/c/libtorch-2.13.0-cpu"), expected);
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(quoted("a\"b\\c\n"), r#""a\"b\\c\u000A""#);
    }

    #[test]
    fn the_same_text_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libtorch.toml");
        write(&file, Path::new("/c/cpu")).unwrap();
        let read_only = |on| {
            let mut permissions = fs::metadata(&file).unwrap().permissions();
            permissions.set_readonly(on);
            fs::set_permissions(&file, permissions).unwrap();
        };
        let before = fs::metadata(&file).unwrap().modified().unwrap();
        read_only(true);
        write(&file, Path::new("/c/cpu")).unwrap();
        read_only(false);
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
        write(&file, Path::new("/c/cuda")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text("/c/cuda"));
    }
}
