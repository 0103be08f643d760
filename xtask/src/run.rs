//! Child cargo commands, shown before they run.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

use crate::libtorch::Libtorch;
use crate::workspace::Workspace;

/// A cargo command that is yet to run.
#[derive(Debug)]
pub(crate) struct Cargo {
    /// The command itself.
    command: Command,
    /// The same in a form that can be pasted into a shell.
    shown: String,
}

impl Cargo {
    /// Prepares `cargo <arguments>` in the root folder; `arguments` are parted at blanks.
    pub(crate) fn new(workspace: &Workspace, arguments: &str) -> Self {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(workspace.root()).args(arguments.split_whitespace());
        Self { command, shown: format!("cargo {arguments}") }
    }

    /// Prepares a command that needs no libtorch, with a build folder of its own.
    ///
    /// Nothing of what it builds runs for long, so nothing is optimised.
    pub(crate) fn doc_only(workspace: &Workspace, arguments: &str) -> Self {
        Self::new(workspace, arguments)
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
            .env("CARGO_TARGET_DIR", workspace.doc_only_target())
    }

    /// Adds one argument as it is.
    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument.as_ref());
        _ = write!(self.shown, " {}", argument.as_ref().display());
        self
    }

    /// Sets a variable for the command alone.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.command.env(name, value.as_ref());
        let value = value.as_ref().display().to_string();
        let quote = if value.contains(' ') { "\"" } else { "" };
        self.shown = format!("{name}={quote}{value}{quote} {}", self.shown);
        self
    }

    /// Points the command to libtorch, whatever this process has in its own environment.
    ///
    /// A value that cargo took from an older `.cargo/libtorch.toml` for this very process would otherwise win over the
    /// file written since.
    pub(crate) fn with(mut self, libtorch: &Libtorch) -> Self {
        if let Some(folder) = libtorch.folder() {
            self.command.env("LIBTORCH", folder);
        }
        self
    }

    /// Runs the command to its end and returns how it ended.
    pub(crate) fn status(&mut self) -> Result<ExitStatus> {
        eprintln!("$ {}", self.shown);
        self.command.status().with_context(|| format!("`{}` could not be started", self.shown))
    }

    /// Runs the command and fails when it does.
    pub(crate) fn run(mut self) -> Result<()> {
        let status = self.status()?;
        self.succeeded(status)
    }

    /// Runs the command and returns what it prints.
    pub(crate) fn output(mut self) -> Result<String> {
        eprintln!("$ {}", self.shown);
        let output = self.command.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("`{}` could not be started", self.shown))?;
        self.succeeded(output.status)?;
        String::from_utf8(output.stdout)
            .with_context(|| format!("`{}` printed no text", self.shown))
    }

    /// Runs a test command like [`run`](Self::run), and returns its last `test result:` line instead of printing it, so
    /// that a caller with something left to say can end with it.
    pub(crate) fn run_tests(mut self) -> Result<Option<String>> {
        eprintln!("$ {}", self.shown);
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("`{}` could not be started", self.shown))?;
        let mut held = HeldSummary::default();
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines() {
                for ready in held.pass(line.context("the output of the tests is not text")?) {
                    println!("{ready}");
                }
            }
        }
        let status =
            child.wait().with_context(|| format!("`{}` could not be waited for", self.shown))?;
        if let Err(error) = self.succeeded(status) {
            held.summary.iter().for_each(|summary| println!("{summary}"));
            return Err(error);
        }
        Ok(held.summary)
    }

    /// Turns a failed end into an error.
    fn succeeded(&self, status: ExitStatus) -> Result<()> {
        if !status.success() {
            bail!("`{}` failed ({status})", self.shown);
        }
        Ok(())
    }
}

/// Lets the lines of a test run through, and keeps back a summary until it is clear that another follows.
#[derive(Debug, Default)]
struct HeldSummary {
    /// The last summary seen, if nothing but blank lines and rustdoc's timing came after it.
    summary: Option<String>,
}

impl HeldSummary {
    /// Takes the next line and returns those that may be printed.
    fn pass(&mut self, line: String) -> Vec<String> {
        if line.starts_with("test result:") {
            return self.summary.replace(line).into_iter().collect();
        }
        if line.is_empty() || line.starts_with("all doctests ran in") {
            return vec![line];
        }
        self.summary.take().into_iter().chain([line]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_summary_is_kept_back() {
        let lines = [
            "running 1 test",
            "test a ... ok",
            "",
            "test result: ok. 1 passed",
            "",
            "running 1 test",
        ];
        let last = ["test result: ok. 2 passed", "", "all doctests ran in 0.1s"];
        let mut held = HeldSummary::default();
        let printed: Vec<String> =
            lines.iter().chain(&last).flat_map(|line| held.pass((*line).to_owned())).collect();
        let expected = [
            "running 1 test",
            "test a ... ok",
            "",
            "",
            "test result: ok. 1 passed",
            "running 1 test",
            "",
            "all doctests ran in 0.1s",
        ];
        assert_eq!(printed, expected);
        assert_eq!(held.summary.as_deref(), Some("test result: ok. 2 passed"));
    }
}
