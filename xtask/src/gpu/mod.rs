//! A folder of programs, and a script that runs them on a machine with a GPU and nothing but Python and torch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::folder;
use crate::libtorch::Libtorch;
use crate::python;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// Runs the programs beside it.
const SCRIPT: &str = include_str!("run.py");
/// Builds the programs.
const BUILD: &str = "build --release --example mnist --bench step --test gpu --test emulated_gpu \
    --message-format json-render-diagnostics";
/// The programs, by the names of their targets.
const PROGRAMS: [&str; 4] = ["mnist", "step", "gpu", "emulated_gpu"];
/// What is built for libtorch 2.11.0; the lock file has what is built for 2.13.0.
const OLDER: [&str; 2] = ["tch", "torch-sys"];

/// Makes the folder and returns its path.
///
/// The programs are built from a copy of the project, whose lock file has the older `tch`.
pub(crate) fn run(workspace: &Workspace) -> Result<PathBuf> {
    let libtorch = Libtorch::to_link_with()?;
    let build = workspace.gpu_target();
    let source = build.join("source");
    folder::empty(&source)?;
    let copy = workspace.copy(source)?;
    for package in OLDER {
        Cargo::new(&copy, &format!("update {package} --precise 0.24.0")).run()?;
    }
    let cargo = Cargo::new(&copy, BUILD)
        .with(&libtorch)
        .env("CARGO_TARGET_DIR", &build)
        .env("CARGO_PROFILE_RELEASE_STRIP", "true")
        // CUDA's libraries, which libtorch's own need, are on the machine with the GPU only.
        .env("RUSTFLAGS", "-Clink-arg=-Wl,--allow-shlib-undefined");
    let folder = workspace.gpu_dir();
    fill(&folder, cargo)?;
    Ok(folder)
}

/// Makes the same folder of the ordinary build, and runs all in it that needs no GPU, shortened.
pub(crate) fn on_the_cpu(workspace: &Workspace, libtorch: &Libtorch) -> Result<()> {
    let folder = workspace.gpu_check_dir();
    fill(&folder, Cargo::new(workspace, BUILD).with(libtorch))?;
    let python = python::find().map_err(|reason| anyhow!(reason))?;
    let mut script = Command::new(python);
    script.arg(folder.join("run.py")).arg("--cpu").arg("--out").arg(folder.join("results"));
    let status = script.status().with_context(|| format!("`{python}` could not be started"))?;
    if !status.success() {
        bail!("a step failed: see {}", folder.join("results/results.md").display());
    }
    Ok(())
}

/// Fills the folder with the programs that a cargo command builds, and the script.
fn fill(folder: &Path, cargo: Cargo) -> Result<()> {
    let messages = cargo.output()?;
    folder::empty(folder)?;
    for program in PROGRAMS {
        let Some(built) = executable(&messages, program) else {
            bail!("cargo did not say where it built `{program}`");
        };
        let copy = folder.join(program);
        fs::copy(&built, &copy)
            .with_context(|| format!("cannot copy {} to {}", built.display(), copy.display()))?;
    }
    let script = folder.join("run.py");
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))
}

/// Returns where cargo built a target, by what it says in JSON, a message a line.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut built = messages.filter(|message| message["target"]["name"] == target);
    built.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests;
