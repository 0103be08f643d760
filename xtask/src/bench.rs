//! The benchmarks.

use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::libtorch::Libtorch;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// The benchmarks, by the names of their folders in `benches/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Benchmark {
    /// One optimizer step against libtorch's own ways to do the same
    Step,
    /// Checkpoints against tch's own files: bytes a second, and memory
    Checkpoint,
}

impl Benchmark {
    /// Returns the cargo command that runs it.
    fn command(self) -> &'static str {
        match self {
            Self::Step => "bench --bench step --",
            Self::Checkpoint => "bench --bench checkpoint --",
        }
    }
}

/// Runs a benchmark; `rest` goes to it as it is.
pub(crate) fn run(
    workspace: &Workspace,
    libtorch: &Libtorch,
    benchmark: Benchmark,
    json: Option<&Path>,
    rest: &[String],
) -> Result<()> {
    let mut cargo = Cargo::new(workspace, benchmark.command()).with(libtorch);
    if let Some(file) = json {
        // The child runs in the root folder, the user may be elsewhere.
        cargo = cargo.arg("--json").arg(std::path::absolute(file).context("--json names no file")?);
    }
    rest.iter().fold(cargo, |cargo, argument| cargo.arg(argument)).run()
}
