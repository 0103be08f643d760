//! Trains, stops, goes on in a new process, and shows that nothing was lost.
//!
//! ```text
//! cargo run --release --example resume
//! ```
//!
//! runs the same training twice, each time in processes of its own: once straight through, once
//! stopped and resumed. The last checkpoints of both are then compared, byte by byte. The training
//! itself is an ordinary program, which can be stopped and started at will:
//!
//! ```text
//! cargo run --release --example resume -- --folder target/run --steps 1000
//! ```

use std::{env, error::Error, fs, path::PathBuf, process::Command};

use clap::Parser;
use serde::{Deserialize, Serialize};
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT},
};
use tch_amp::{
    Amp, AnyLevel, Checkpoint, Dynamic, OptLevel, checkpoint::CheckpointFolder, optim::AdamW,
    with_level,
};

/// Trains, stops, goes on in a new process, and shows that nothing was lost
#[derive(Debug, Parser)]
struct Cli {
    /// Train with checkpoints in this folder, from the newest one on
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// How many steps the training has in all
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// The opt level: O0, O1, O2, O3, O1<bf16>, O2<bf16> or O3<bf16>
    #[arg(long, default_value = "O2<bf16>")]
    opt_level: AnyLevel,
}

/// What the program itself goes on from.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    step: u64,
    loss: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    match &cli.folder {
        Some(folder) => with_level!(cli.opt_level, L => train::<L>(folder.clone(), cli.steps)),
        None => compare(&cli),
    }
}

/// Trains up to step `steps`, with a checkpoint every tenth step and at the end.
fn train<L: OptLevel>(folder: PathBuf, steps: u64) -> Result<(), Box<dyn Error>> {
    tch::manual_seed(1);
    let store = nn::VarStore::new(Device::Cpu);
    let hidden = nn::linear(store.root() / "hidden", 32, 128, Default::default());
    let norm = nn::batch_norm1d(store.root() / "norm", 128, Default::default());
    let out = nn::linear(store.root() / "out", 128, 4, Default::default());
    let net = nn::func_t(move |xs, train| {
        xs.apply(&hidden).apply_t(&norm, train).relu().dropout(0.2, train).apply(&out)
    });
    let scale = Dynamic::new().init_scale(1024.0).growth_interval(25);
    let builder = Amp::<L>::builder().loss_scale(scale);
    let (model, mut opt) = builder.build((store, net), AdamW::new(1e-2))?;

    let checkpoints = CheckpointFolder::new(folder);
    let newest = checkpoints.load_newest(Checkpoint::new(&model, &mut opt))?;
    let Progress { step: first, mut loss } = newest.unwrap_or_default();
    for step in first + 1..=steps {
        let (xs, ys) = batch(step);
        let step_loss = (model.forward_t(&xs, true) - ys).square().mean(Kind::Float);
        opt.backward_step(&step_loss)?;
        loss = step_loss.double_value(&[]);
        if step % 10 == 0 || step == steps {
            let checkpoint = Checkpoint::new(&model, &mut opt);
            checkpoints.save(step, checkpoint, &Progress { step, loss })?;
        }
    }
    let scale = opt.scalers()[0].scale();
    println!("steps {first:>3} to {steps:>3}   loss {loss:.6}   loss scale {scale}");
    Ok(())
}

/// The data of a step; a real program would read its data set from there on.
fn batch(step: u64) -> (Tensor, Tensor) {
    let phases = Tensor::arange(64 * 32, (Kind::Float, Device::Cpu)) * 0.37 + step as f64;
    let xs = phases.sin().view([64, 32]);
    let ys = xs.narrow(1, 0, 4).square() - 0.5;
    (xs, ys)
}

/// Runs the training straight through, and in two parts, and compares the last checkpoints.
fn compare(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let last = |run: &str| CheckpointFolder::new(folder.path().join(run)).path_of(cli.steps);
    let train = |title: &str, run: &str, steps: u64| {
        print!("{title:<9}");
        std::io::Write::flush(&mut std::io::stdout())?;
        let mut command = Command::new(env::current_exe()?);
        command.arg("--folder").arg(folder.path().join(run));
        command.args(["--steps", &steps.to_string(), "--opt-level", cli.opt_level.name()]);
        match command.status()?.success() {
            true => Ok(()),
            false => Err(Box::<dyn Error>::from(format!("the {title} run failed"))),
        }
    };
    println!("{} with dropout, batch norm and AdamW; each line is a process", cli.opt_level);
    train("straight", "straight", cli.steps)?;
    train("stopped", "resumed", cli.steps * 2 / 5)?;
    train("resumed", "resumed", cli.steps)?;
    let (straight, resumed) = (fs::read(last("straight"))?, fs::read(last("resumed"))?);
    if straight != resumed {
        return Err("the resumed run differs from the straight one".into());
    }
    println!("The resumed run equals the straight one in all {} bytes of its file.", resumed.len());
    Ok(())
}
