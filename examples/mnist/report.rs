//! The runs side by side: as a table, as JSON, and against what is required of them.

use std::{fmt::Write, fs, io, path::Path};

use serde::Serialize;
use tch_amp::AnyLevel;

use crate::{error::DemoError, train::Run};

/// The accuracy that each level has to reach.
pub const REQUIRED: f64 = 0.97;
/// How far each level may be from `O0`.
const ALLOWED: f64 = 0.01;

impl Run {
    /// The accuracy after the last epoch, between 0 and 1.
    pub fn accuracy(&self) -> f64 {
        self.accuracies.last().copied().unwrap_or_default()
    }
}

/// The run at `O0`, where others are there to be compared with it.
fn baseline(runs: &[Run]) -> Option<&Run> {
    runs.iter().find(|run| run.level == AnyLevel::O0).filter(|_| runs.len() > 1)
}

/// How many times as fast as `O0` the run was.
fn speedup(run: &Run, runs: &[Run]) -> Option<f64> {
    baseline(runs).map(|baseline| baseline.seconds_per_epoch / run.seconds_per_epoch)
}

/// One line for each run.
pub fn table(runs: &[Run]) -> String {
    let mut table = format!(
        "{:<6} {:<5} {:>9} {:>11} {:>9} {:>10} {:>10} {:>8} {:>8}\n",
        "level",
        "dtype",
        "accuracy",
        "s per epoch",
        "speed-up",
        "weights",
        "optimizer",
        "skipped",
        "scale"
    );
    table += &"─".repeat(84);
    for run in runs {
        let speedup = speedup(run, runs).map_or("–".to_owned(), |times| format!("{times:.2}×"));
        // Writing to a string cannot fail.
        let _ = write!(
            table,
            "\n{:<6} {:<5} {:>9} {:>11.2} {:>9} {:>10} {:>10} {:>8} {:>8}",
            run.level_name,
            run.dtype,
            format!("{:.2} %", 100.0 * run.accuracy()),
            run.seconds_per_epoch,
            speedup,
            megabytes(run.weight_bytes),
            megabytes(run.optimizer_bytes),
            run.skipped,
            run.final_scale
        );
    }
    table
}

fn megabytes(bytes: usize) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

/// The document that `--json` writes.
#[derive(Serialize)]
struct Document {
    runs: Vec<Record>,
}

/// A run in the document; `accuracy` lies between 0 and 1, `speedup` is null without `O0`.
#[derive(Serialize)]
struct Record {
    level: &'static str,
    dtype: &'static str,
    accuracy: f64,
    seconds_per_epoch: f64,
    speedup: Option<f64>,
    weight_bytes: usize,
    optimizer_bytes: usize,
    skipped: u64,
    final_scale: f64,
}

/// Writes the numbers of all runs.
pub fn write_json(runs: &[Run], file: &Path) -> Result<(), DemoError> {
    let record = |run: &Run| Record {
        level: run.level_name,
        dtype: run.dtype,
        accuracy: run.accuracy(),
        seconds_per_epoch: run.seconds_per_epoch,
        speedup: speedup(run, runs),
        weight_bytes: run.weight_bytes,
        optimizer_bytes: run.optimizer_bytes,
        skipped: run.skipped,
        final_scale: run.final_scale,
    };
    let document = Document { runs: runs.iter().map(record).collect() };
    let written = serde_json::to_string_pretty(&document)
        .map_err(io::Error::from)
        .and_then(|json| fs::write(file, json + "\n"));
    written.map_err(|source| DemoError::Write { file: file.to_owned(), source })
}

/// Fails when a level did not reach the accuracy that is required.
pub fn check(runs: &[Run]) -> Result<(), DemoError> {
    let baseline = baseline(runs).map(Run::accuracy);
    for run in runs {
        let (level, accuracy) = (run.level, run.accuracy());
        if accuracy < REQUIRED {
            return Err(DemoError::Accuracy { level, accuracy, required: REQUIRED });
        }
        if let Some(baseline) = baseline.filter(|baseline| (accuracy - baseline).abs() > ALLOWED) {
            return Err(DemoError::Difference { level, accuracy, baseline, allowed: ALLOWED });
        }
    }
    Ok(())
}
