//! Downloads wheels with Python's pip, which knows the registry, the user's mirrors and proxies.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::BY_HAND;
use super::wheels::Wheel;
use crate::python;

/// How many of pip's last lines an error repeats.
const LAST_LINES: usize = 3;

/// The pip of one Python.
#[derive(Debug)]
pub(super) struct Pip {
    /// The command that runs this Python.
    python: &'static str,
}

impl Pip {
    /// Finds a Python that has pip.
    pub(super) fn find() -> Result<Self> {
        match python::find() {
            Ok(python) => Ok(Self { python }),
            Err(reason) => bail!(
                "libtorch is fetched with Python's pip, but {reason} and run the command again.\n{BY_HAND}"
            ),
        }
    }

    /// Downloads one wheel into a folder; pip's own files go to `temporary`.
    ///
    /// The tags are the wheel's own, so that any Python gets the same file. What pip prints, its progress bar included,
    /// goes to standard error.
    pub(super) fn download(&self, wheel: &Wheel, folder: &Path, temporary: &Path) -> Result<()> {
        fs::create_dir_all(temporary)
            .with_context(|| format!("cannot create {}", temporary.display()))?;
        let mut command = Command::new(self.python);
        command
            .args([
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--no-cache-dir",
                "--disable-pip-version-check",
            ])
            .args([
                "--only-binary=:all:",
                "--python-version",
                "3.12",
                "--implementation",
                "cp",
                "--abi",
                "cp312",
            ])
            .args(wheel.platforms().flat_map(|platform| ["--platform", platform]))
            .arg("-d")
            .arg(folder)
            .arg(wheel.requirement())
            .env("TMPDIR", temporary)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("`{} -m pip` could not be started", self.python))?;
        let last_lines =
            child.stderr.take().map(|pipe| echo(BufReader::new(pipe))).unwrap_or_default();
        let status = child.wait().context("pip could not be waited for")?;
        if !status.success() {
            bail!(
                "libtorch could not be fetched: `pip download {}` failed ({status}). The last it said:\n{last_lines}\
                 With the network back, run the command again: whole downloads are kept. A mirror or a proxy goes into \
                 pip's own settings.\n{BY_HAND}",
                wheel.requirement()
            );
        }
        Ok(())
    }
}

/// Repeats every line on standard error, and returns the last ones, indented.
fn echo(lines: impl BufRead) -> String {
    let mut last = VecDeque::new();
    for line in lines.lines().map_while(Result::ok) {
        eprintln!("{line}");
        if !line.trim().is_empty() {
            last.push_back(format!("    {line}\n"));
        }
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    last.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_the_last_lines_only() {
        let lines: String =
            (1..=LAST_LINES + 2).map(|number| format!("line {number}\n\n")).collect();
        let last = echo(lines.as_bytes());
        assert!(last.starts_with("    line 3\n"), "{last}");
        assert_eq!(last.lines().count(), LAST_LINES);
    }
}
