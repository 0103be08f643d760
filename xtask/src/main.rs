//! The project's commands, run as `cargo xtask <command>`.
//!
//! Those that link libtorch first make sure of it (see [`libtorch`]), so that a fresh machine needs nothing but Rust, a
//! C++ compiler and Python's pip.

mod bench;
mod ci;
mod demo;
mod folder;
mod gpu;
mod kernels;
mod libtorch;
mod python;
mod run;
mod test;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::bench::Benchmark;
use crate::kernels::{Ptx, Tools};
use crate::libtorch::{Build, Libtorch};
use crate::workspace::Workspace;

/// Reads the command line.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The commands of tch-amp", after_help = FROM_WHERE)]
struct Cli {
    /// Says what to do.
    #[command(subcommand)]
    command: Command,
}

/// Explains where libtorch comes from, below every `--help`.
const FROM_WHERE: &str = "\
libtorch 2.13.0 is the one named by LIBTORCH (a folder with include/ and lib/), or that of the Python package torch with \
LIBTORCH_USE_PYTORCH=1. With neither set it is fetched once with Python's pip, checked against a pinned SHA-256, and \
kept in the user's cache folder; .cargo/libtorch.toml then points plain cargo commands to it.";

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Trains on real data at every opt level and shows what mixed precision bought
    ///
    /// The plots go to target/demo/. With --cuda it trains on the first GPU.
    Demo(DemoArgs),
    /// Runs every test: ui-tests, those of the CUDA kernels, unit, integration and doc tests
    Test(BuildArgs),
    /// Measures against libtorch and tch, as ratios within one run
    Bench(BenchArgs),
    /// Makes the folder target/gpu, with which a machine with an NVIDIA GPU checks and measures the kernels
    ///
    /// That machine needs Linux on x86-64, and a Python with torch 2.11.0. Fetches some 530 MB.
    Gpu,
    /// Runs what continuous integration runs: format, lints, docs, tests, examples and short runs of demo and benchmark
    Ci,
    /// Compiles the CUDA kernels for every kind of GPU and checks registers, memory accesses and occupancy
    ///
    /// NVRTC and cuobjdump are fetched with Python's pip into target/cuda, checked against pinned SHA-256s. The compiled
    /// kernels go to target/cubins. It needs no GPU, and fails where a kernel breaks what xtask/src/kernels/gate.rs
    /// promises, or where kernels/ptx is not what the sources compile to.
    Kernels(KernelsArgs),
    /// Makes sure of libtorch and prints its folder
    Libtorch(BuildArgs),
}

/// Which libtorch to use.
#[derive(Debug, Args)]
struct BuildArgs {
    /// Use libtorch with its CUDA libraries
    ///
    /// Fetches some 2.4 GB and keeps some 3.7 GB, for Linux on x86-64 only: CUDA 13.0, cuDNN, NCCL and the rest, all but
    /// the driver, which must be of release 580 or later. Going from the CPU's libtorch to this one and back compiles
    /// torch-sys again, some minutes each time.
    #[arg(long)]
    cuda: bool,
}

impl BuildArgs {
    /// Returns the libtorch asked for.
    fn build(&self) -> Build {
        if self.cuda { Build::Cuda } else { Build::Cpu }
    }
}

/// The options of the gate for kernels.
#[derive(Debug, Args)]
struct KernelsArgs {
    /// Write kernels/ptx, the assembly that the library carries
    #[arg(long)]
    write_ptx: bool,
}

/// The options of the benchmarks.
#[derive(Debug, Args)]
struct BenchArgs {
    /// What to measure
    #[arg(value_enum, default_value_t = Benchmark::Step)]
    benchmark: Benchmark,
    /// Write the numbers to this file as JSON (only of `step`)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Further arguments for the benchmark, after --
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

/// The options of the demo.
#[derive(Debug, Args)]
struct DemoArgs {
    /// Write the numbers to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    build: BuildArgs,
    /// Further arguments for the example `mnist`; the options above go before them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    rest: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  because: {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs one command and returns the exit code to end with.
fn run(cli: &Cli) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match &cli.command {
        Command::Demo(args) => {
            let build = args.build.build();
            let libtorch = Libtorch::ensure(&workspace, build)?;
            demo::run(&workspace, &libtorch, build, args.json.as_deref(), &args.rest)
        }
        Command::Test(args) => {
            let libtorch = Libtorch::ensure(&workspace, args.build())?;
            test::run(&workspace, &libtorch)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench(args) => {
            let libtorch = Libtorch::ensure(&workspace, Build::Cpu)?;
            bench::run(&workspace, &libtorch, args.benchmark, args.json.as_deref(), &args.rest)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Gpu => {
            println!("{}", gpu::run(&workspace)?.display());
            Ok(ExitCode::SUCCESS)
        }
        Command::Ci => {
            ci::run(&workspace)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Kernels(args) => {
            let tools = Tools::ensure(&workspace)?;
            let ptx = if args.write_ptx { Ptx::Write } else { Ptx::Compare };
            kernels::run(&workspace, &tools.context("the kernels were not compiled")?, ptx)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Libtorch(args) => {
            println!("{}", Libtorch::ensure(&workspace, args.build())?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_demo_passes_unknown_options_on() {
        let cli =
            Cli::parse_from(["xtask", "demo", "--json", "out.json", "--cuda", "--epochs", "3"]);
        let Command::Demo(args) = cli.command else { panic!("not the demo: {cli:?}") };
        assert_eq!(args.json, Some(PathBuf::from("out.json")));
        assert!(args.build.cuda);
        assert_eq!(args.rest, ["--epochs", "3"]);
    }

    #[test]
    fn a_benchmark_is_named_and_gets_what_follows_two_dashes() {
        let cli = Cli::parse_from(["xtask", "bench", "--json", "out.json"]);
        let Command::Bench(args) = cli.command else { panic!("not a benchmark: {cli:?}") };
        assert_eq!((args.benchmark, args.rest.len()), (Benchmark::Step, 0));
        assert_eq!(args.json, Some(PathBuf::from("out.json")));
        let cli = Cli::parse_from(["xtask", "bench", "checkpoint", "--", "--layers", "1"]);
        let Command::Bench(args) = cli.command else { panic!("not a benchmark: {cli:?}") };
        assert_eq!(args.benchmark, Benchmark::Checkpoint);
        assert_eq!(args.rest, ["--layers", "1"]);
    }
}
