//! The demo: the example `mnist` at every opt level, on real data.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::libtorch::Libtorch;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// What the demo runs.
const DEMO: &str = "run --release --example mnist -- --all-levels";

/// Runs the demo and returns its exit code, which says whether the accuracies were reached.
pub(crate) fn run(
    workspace: &Workspace,
    libtorch: &Libtorch,
    json: Option<&Path>,
    rest: &[String],
) -> Result<ExitCode> {
    let plots = workspace.demo_dir();
    fs::create_dir_all(&plots).with_context(|| format!("cannot create {}", plots.display()))?;
    let mut cargo = Cargo::new(workspace, DEMO).with(libtorch);
    if let Some(file) = json {
        // The child runs in the root folder, the user may be elsewhere.
        let file = std::path::absolute(file).context("--json names no file")?;
        cargo = cargo.arg("--json").arg(file);
    }
    cargo = cargo.arg("--plots").arg(&plots);
    cargo = rest.iter().fold(cargo, |cargo, argument| cargo.arg(argument));
    let status = cargo.status()?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
