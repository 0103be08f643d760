//! One optimizer step against libtorch's own ways to do the same work.
//!
//! `cargo xtask bench` runs it. All take turns in one process, on buffers of the same sizes, and
//! the table gives medians.

mod dispatcher;
mod o0;
mod ours;
mod peers;

use std::{error::Error, fs, path::PathBuf, time::Instant};

use clap::Parser;
use serde::Serialize;
use tch::{Cuda, Device};
use tch_amp::{LowPrecision, bf16, f16};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[derive(Debug, Parser)]
#[command(about = "One optimizer step against libtorch's own ways")]
struct Args {
    /// Write the numbers to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds of each measurement, not counting the first, which is thrown away
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Divides the number of parameters
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..=1000))]
    shrink: i64,
    /// Measure on the first GPU, with ten times the parameters in large tensors
    #[arg(long)]
    cuda: bool,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// How many tensors of how many elements there are.
#[derive(Debug, Clone, Copy)]
struct Shape {
    tensors: usize,
    elements: i64,
    device: Device,
}

impl Shape {
    fn parameters(self) -> f64 {
        self.tensors as f64 * self.elements as f64
    }
}

#[derive(Debug, Serialize)]
struct Report {
    cases: Vec<Case>,
    /// A whole training step at `O0`, as a multiple of the same with plain tch.
    o0_of_plain_tch: f64,
}

#[derive(Debug, Serialize)]
struct Case {
    name: String,
    /// Of the CPU.
    threads: i32,
    ours_ms: f64,
    libtorch_ms: f64,
    torch_amp_ms: f64,
    ceiling_ms: f64,
    ratio_libtorch: f64,
    ratio_torch_amp: f64,
    of_ceiling: f64,
    /// Bytes that our step has to move, each second.
    ours_gb_s: f64,
}

fn main() -> Outcome {
    let args = Args::parse();
    let (device, elements, threads) = match args.cuda {
        true => (Device::Cuda(0), 2_500_000, [1].as_slice()),
        false => (Device::Cpu, 250_000, [1, 2].as_slice()),
    };
    println!("kernels: {}\n", tch_amp::kernels(device)?);
    let large = Shape { tensors: 200, elements: elements / args.shrink, device };
    let small = Shape { tensors: 10_000 / args.shrink as usize, elements: 1_000, device };
    let mut cases = Vec::new();
    println!("| case | threads | ms | GB/s | libtorch's best | torch.amp's way | of the ceiling |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for &threads in threads {
        tch::set_num_threads(threads);
        for shape in [large, small] {
            cases.push(measure::<bf16>("bf16", shape, threads, args.rounds)?);
            cases.push(measure::<f16>("f16", shape, threads, args.rounds)?);
        }
    }
    let o0_of_plain_tch = o0::of_plain_tch(args.rounds, device)?;
    println!("\na whole training step at O0 takes {o0_of_plain_tch:.3} times that of plain tch");
    if let Some(file) = args.json {
        fs::write(file, serde_json::to_string_pretty(&Report { cases, o0_of_plain_tch })? + "\n")?;
    }
    Ok(())
}

/// Bytes that a step moves for each parameter: 2 to look at the gradient; gradient, master and two
/// moments are read once, master, moments and weight written once.
const BYTES: f64 = 2.0 + (2.0 + 12.0) + (12.0 + 2.0);

fn measure<H: LowPrecision>(dtype: &str, shape: Shape, threads: i32, rounds: u32) -> Outcome<Case> {
    let mut ours = ours::Ours::<H>::new(shape)?;
    let mut libtorch = peers::Libtorch::new(shape, H::KIND)?;
    let mut torch_amp = peers::TorchAmp::new(shape)?;
    let mut ceiling = peers::Ceiling::new(shape)?;
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..=rounds {
        times[0].push(ours.step()?);
        times[1].push(timed(shape.device, || libtorch.step())?);
        times[2].push(timed(shape.device, || torch_amp.step())?);
        times[3].push(timed(shape.device, || ceiling.run())? * BYTES / peers::Ceiling::BYTES);
    }
    let [ours_ms, libtorch_ms, torch_amp_ms, ceiling_ms] =
        times.map(|mut times| median(&mut times[1..]) * 1e3);
    let Shape { tensors, elements, .. } = shape;
    let case = Case {
        name: format!("{dtype}, {tensors} tensors of {elements}"),
        threads,
        ours_ms,
        libtorch_ms,
        torch_amp_ms,
        ceiling_ms,
        ratio_libtorch: libtorch_ms / ours_ms,
        ratio_torch_amp: torch_amp_ms / ours_ms,
        of_ceiling: ceiling_ms / ours_ms,
        ours_gb_s: BYTES * shape.parameters() / ours_ms / 1e6,
    };
    println!(
        "| {} | {} | {:.2} | {:.0} | {:.2} times | {:.2} times | {:.0} % |",
        case.name,
        case.threads,
        case.ours_ms,
        case.ours_gb_s,
        case.ratio_libtorch,
        case.ratio_torch_amp,
        100.0 * case.of_ceiling
    );
    Ok(case)
}

/// The seconds that work takes, all that it has a GPU do included.
fn timed<T>(device: Device, work: impl FnOnce() -> Outcome<T>) -> Outcome<f64> {
    wait_for(device);
    let start = Instant::now();
    work()?;
    wait_for(device);
    Ok(start.elapsed().as_secs_f64())
}

fn wait_for(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
