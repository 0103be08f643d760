//! The demo: the example `mnist` at every opt level, on real data.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::libtorch::{Build, Libtorch};
use crate::run::Cargo;
use crate::workspace::Workspace;

/// What the demo runs.
const DEMO: &str = "run --release --example mnist -- --all-levels";

/// Runs the demo and returns its exit code, which says whether the accuracies were reached.
///
/// `rest` goes to the example as it is, and replaces what is chosen here: where the plots go, and with CUDA the device.
pub(crate) fn run(
    workspace: &Workspace,
    libtorch: &Libtorch,
    build: Build,
    json: Option<&Path>,
    rest: &[String],
) -> Result<ExitCode> {
    let mut cargo = Cargo::new(workspace, DEMO).with(libtorch);
    if let Some(file) = json {
        // The child runs in the root folder, the user may be elsewhere.
        let file = std::path::absolute(file).context("--json names no file")?;
        cargo = cargo.arg("--json").arg(file);
    }
    if !has_option(rest, "--plots") {
        let plots = workspace.demo_dir();
        fs::create_dir_all(&plots).with_context(|| format!("cannot create {}", plots.display()))?;
        cargo = cargo.arg("--plots").arg(&plots);
    }
    if build == Build::Cuda && !has_option(rest, "--device") {
        cargo = cargo.arg("--device").arg("cuda");
    }
    let status = rest.iter().fold(cargo, |cargo, argument| cargo.arg(argument)).status()?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

/// Tells whether an option is among the arguments, as `--name value` or `--name=value`.
fn has_option(arguments: &[String], name: &str) -> bool {
    arguments
        .iter()
        .filter_map(|argument| argument.strip_prefix(name))
        .any(|rest| rest.is_empty() || rest.starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_in_both_spellings() {
        let arguments =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert!(has_option(&arguments(&["--epochs", "2", "--plots", "here"]), "--plots"));
        assert!(has_option(&arguments(&["--plots=here"]), "--plots"));
        assert!(!has_option(&arguments(&["--plots-dpi", "plots"]), "--plots"));
    }
}
