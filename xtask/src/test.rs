//! Every test of the project.

use anyhow::Result;

use crate::libtorch::Libtorch;
use crate::python::Peers;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// Runs the ui-tests, the tests of this tool and of the CUDA kernels, and the library's unit, integration and doc tests.
pub(crate) fn run(workspace: &Workspace, libtorch: &Libtorch) -> Result<()> {
    ui(workspace).run()?;
    tool(workspace).run()?;
    kernels(workspace).run()?;
    let peers = Peers::if_possible(workspace);
    library(workspace, libtorch, peers.as_ref()).run()
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

/// Returns the library's unit, integration and doc tests, optimised like the demo, so that torch-sys is compiled once.
pub(crate) fn library(workspace: &Workspace, libtorch: &Libtorch, peers: Option<&Peers>) -> Cargo {
    let cargo = Cargo::new(workspace, "test --release --no-fail-fast").with(libtorch);
    match peers {
        Some(peers) => peers.for_tests(cargo),
        None => cargo,
    }
}
