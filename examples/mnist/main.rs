//! Trains a small convolutional net on MNIST at an opt level that is chosen on the command line.
//!
//! What it shows of `tch-amp`:
//!
//! - [`cli`]: an `AmpConfig` from command-line options, with the crate's own messages for illegal
//!   combinations,
//! - [`train`]: one training function for every level and every optimizer, entered by
//!   `with_level!`; the only lines that differ from plain `tch` are `build` and `backward_step`,
//! - [`model`]: the net, which knows nothing of mixed precision.
//!
//! ```text
//! cargo run --release --example mnist -- --opt-level O2
//! cargo run --release --example mnist -- --all-levels --plots target/demo
//! ```

mod cli;
mod data;
mod error;
mod model;
mod plots;
mod report;
mod train;
mod watch;

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;
use cli::Cli;
use data::Mnist;
use error::DemoError;
use train::Run;

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .without_time()
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match demo(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn demo(cli: &Cli) -> Result<(), DemoError> {
    let configs = cli.configs()?;
    let settings = cli.settings()?;
    let mut data = match &cli.data {
        Some(folder) => Mnist::from_folder(folder)?,
        None => Mnist::bundled()?,
    };
    if let Some(limit) = cli.limit {
        data.train = data.train.first(limit);
    }
    println!("{data}; {settings}");
    let data = data.to_device(settings.device);

    let runs = configs.iter().map(|config| train::run(config, &settings, &data));
    let runs = runs.collect::<Result<Vec<Run>, _>>()?;

    println!("\n{}", report::table(&runs));
    if let Some(file) = &cli.json {
        report::write_json(&runs, file)?;
    }
    if let Some(folder) = &cli.plots {
        for file in plots::write(&runs, folder)? {
            println!("wrote {}", file.display());
        }
    }
    match cli.all_levels {
        true => report::check(&runs),
        false => Ok(()),
    }
}
