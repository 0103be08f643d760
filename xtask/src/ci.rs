//! What continuous integration runs, the cheap steps first.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::kernels::Tools;
use crate::libtorch::{Build, Libtorch};
use crate::python::Peers;
use crate::run::Cargo;
use crate::test;
use crate::workspace::Workspace;

/// The short run of the demo: one level, one epoch, a part of the data.
const SHORT_DEMO: &str = "run --release --example mnist -- --opt-level O2 --epochs 1 --limit 2000";

/// Benchmarks that are too short to measure anything: they show that they run.
const SHORT_BENCHMARKS: [&str; 2] = [
    "bench --bench checkpoint -- --layers 1 --rounds 1",
    "bench --bench step -- --shrink 100 --rounds 1",
];

/// Runs every step, and stops at the first that fails.
///
/// The last thing printed is the summary of the last test run.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let start = Instant::now();
    let cargo = |arguments| Cargo::new(workspace, arguments);
    let doc_only = |arguments| Cargo::doc_only(workspace, arguments);

    step("format", || cargo("fmt --all -- --check").run())?;
    step("tests of the tool", || test::tool(workspace).run())?;
    step("kernels", || test::kernels(workspace).run())?;
    let tools =
        step("compiled kernels", || test::compiled_kernels(workspace, Tools::ensure(workspace)?))?;
    step("clippy", || {
        doc_only("clippy --workspace --all-targets --features doc-only -- -D warnings").run()
    })?;
    step("docs", || {
        doc_only("doc --workspace --no-deps --features doc-only")
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()
    })?;
    step("ui-tests", || test::ui(workspace).run())?;
    let libtorch = step("libtorch", || Libtorch::ensure(workspace, Build::Cpu))?;
    step("examples", || cargo("build --release --examples").with(&libtorch).run())?;
    step("short demo", || cargo(SHORT_DEMO).with(&libtorch).run())?;
    step("resume", || cargo("run --release --example resume").with(&libtorch).run())?;
    let short = |benchmark| cargo(benchmark).with(&libtorch).run();
    step("short benchmarks", || SHORT_BENCHMARKS.into_iter().try_for_each(short))?;
    step("tests on an emulated GPU", || test::on_emulated_gpu(workspace, &libtorch)?.run())?;
    let peers = step("Python packages", || Peers::ensure(workspace))?;
    let tests = || test::library(workspace, &libtorch, peers.as_ref(), tools.as_ref()).run_tests();
    let summary = step("tests", tests)?;

    eprintln!("==> every step passed ({})", seconds(start.elapsed()));
    if let Some(summary) = summary {
        println!("{summary}");
    }
    Ok(())
}

/// Runs one step between two lines that say its name and the time it took.
fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {name}");
    let start = Instant::now();
    let result = work()
        .with_context(|| format!("step `{name}` failed after {}", seconds(start.elapsed())))?;
    eprintln!("<== {name}: passed ({})", seconds(start.elapsed()));
    Ok(result)
}

/// Writes a duration for people.
fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
