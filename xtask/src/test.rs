//! Every test of the project.

use anyhow::Result;

use crate::kernels::{self, Ptx, Tools};
use crate::libtorch::Libtorch;
use crate::python::Peers;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// Tests of what the CUDA kernels do, which do not count bits of norms.
const TRAINING: [&str; 9] = [
    "adagrad",
    "every_optimizer",
    "gradients",
    "lamb",
    "levels",
    "masters",
    "novograd",
    "skipped_steps",
    "step",
];

/// Runs the ui-tests, the tests of this tool and of the CUDA kernels, and the library's unit, integration and doc tests.
pub(crate) fn run(workspace: &Workspace, libtorch: &Libtorch) -> Result<()> {
    ui(workspace).run()?;
    tool(workspace).run()?;
    kernels(workspace).run()?;
    let tools = compiled_kernels(workspace, Tools::if_possible(workspace))?;
    on_emulated_gpu(workspace, libtorch)?.run()?;
    let peers = Peers::if_possible(workspace);
    library(workspace, libtorch, peers.as_ref(), tools.as_ref()).run()
}

/// Returns the ui-tests: what the compiler says to wrong programs. They need no libtorch.
pub(crate) fn ui(workspace: &Workspace) -> Cargo {
    Cargo::doc_only(workspace, "test --features doc-only --test ui")
}

/// Returns the tests of this tool.
///
/// They are not run with the library's: built together, the two share the features of their dependencies, and torch-sys
/// would be compiled once more for the library alone.
pub(crate) fn tool(workspace: &Workspace) -> Cargo {
    Cargo::new(workspace, "test --package xtask")
}

/// Returns the tests of the CUDA kernels, on the emulator: they need neither libtorch nor a GPU.
pub(crate) fn kernels(workspace: &Workspace) -> Cargo {
    Cargo::new(workspace, "test --package tch-amp-emulator")
}

/// Looks at the compiled CUDA kernels where they can be compiled.
pub(crate) fn compiled_kernels(
    workspace: &Workspace,
    tools: Option<Tools>,
) -> Result<Option<Tools>> {
    if let Some(tools) = &tools {
        kernels::run(workspace, tools, Ptx::Compare)?;
    }
    Ok(tools)
}

/// Returns tests of training with a CUDA driver that runs the kernels on the CPU.
pub(crate) fn on_emulated_gpu(workspace: &Workspace, libtorch: &Libtorch) -> Result<Cargo> {
    let driver =
        Cargo::new(workspace, "run --quiet --release --package tch-amp-emulator").output()?;
    let tests = TRAINING.map(|test| format!(" --test {test}")).concat();
    let cargo = Cargo::new(workspace, &format!("test --release{tests}")).with(libtorch);
    Ok(cargo.env("TCH_AMP_CUDA_DRIVER", driver.trim()))
}

/// Returns the library's unit, integration and doc tests, optimised like the demo, so that torch-sys is compiled once.
pub(crate) fn library(
    workspace: &Workspace,
    libtorch: &Libtorch,
    peers: Option<&Peers>,
    tools: Option<&Tools>,
) -> Cargo {
    let cargo = Cargo::new(workspace, "test --release --no-fail-fast").with(libtorch);
    let cargo = peers.into_iter().fold(cargo, |cargo, peers| peers.for_tests(cargo));
    tools.into_iter().fold(cargo, |cargo, tools| tools.for_tests(cargo))
}
