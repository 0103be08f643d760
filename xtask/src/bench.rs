//! The benchmarks.

use anyhow::Result;

use crate::libtorch::Libtorch;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// Runs checkpoints against tch's own files; `rest` goes to the benchmark as it is.
pub(crate) fn run(workspace: &Workspace, libtorch: &Libtorch, rest: &[String]) -> Result<()> {
    let cargo = Cargo::new(workspace, "bench --bench checkpoint --").with(libtorch);
    rest.iter().fold(cargo, |cargo, argument| cargo.arg(argument)).run()
}
