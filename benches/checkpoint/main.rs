//! Checkpoints against `VarStore`'s own files: bytes a second, and memory besides the tensors.
//!
//! `cargo xtask bench checkpoint` runs it. The two take turns on the same work, and the tables give medians.

mod memory;
mod net;
mod speed;

use std::{error::Error, path::PathBuf};

use clap::Parser;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[derive(Debug, Parser)]
#[command(about = "Checkpoints against VarStore's own files")]
struct Args {
    /// Measure in this folder, and in no other
    ///
    /// Default: the first table in /dev/shm, which is memory, where there is one; the second in the
    /// system's temporary folder.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Rounds of each measurement, not counting the first, which is thrown away
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Linear layers of 2048 x 2048; the default makes 100 million parameters
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
    layers: u32,
    /// Measure the memory of one case in this process
    #[arg(long, value_name = "CASE", hide = true, requires = "folder")]
    memory_of: Option<memory::Case>,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Outcome {
    let args = Args::parse();
    if let (Some(case), Some(folder)) = (args.memory_of, &args.folder) {
        return memory::measure(case, args.layers, folder);
    }
    let in_memory = args.folder.clone().unwrap_or_else(memory_backed);
    println!("{} MB of FP32 parameters", net::bytes(args.layers) / 1_000_000);
    speed::table(&in_memory, args.layers, args.rounds)?;
    if args.folder.is_none() {
        speed::table(&std::env::temp_dir(), args.layers, args.rounds)?;
    }
    memory::table(&in_memory, args.layers)
}

fn memory_backed() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { std::env::temp_dir() }
}
