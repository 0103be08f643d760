//! What is seen of a run while it lasts: a progress bar, the loss curve, the time it takes.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tch::{Device, TchError, Tensor};

use crate::{cli::Settings, data::Mnist};

/// Steps per point of the loss curve. Reading a loss makes the host wait for the device.
pub const POINT: usize = 10;

const BAR: &str = "  epoch {prefix} [{bar:30}] {pos}/{len} steps  loss {msg}";

/// Accompanies one run.
#[derive(Debug)]
pub struct Watch {
    device: Device,
    epochs: u32,
    epoch: u32,
    steps_per_epoch: usize,
    steps: usize,
    bar: ProgressBar,
    unread: Vec<Tensor>,
    curve: Vec<(f64, f64)>,
    since: Instant,
    timed: Duration,
}

impl Watch {
    pub fn new(settings: &Settings, data: &Mnist) -> Self {
        let images = data.train.len() as usize;
        Self {
            device: settings.device,
            epochs: settings.epochs,
            epoch: 0,
            steps_per_epoch: images.div_ceil(settings.batch_size as usize),
            steps: 0,
            bar: ProgressBar::hidden(),
            unread: Vec::new(),
            curve: Vec::new(),
            since: Instant::now(),
            timed: Duration::ZERO,
        }
    }

    pub fn start_epoch(&mut self) {
        self.epoch += 1;
        let style = ProgressStyle::with_template(BAR).map(|style| style.progress_chars("━╸─"));
        self.bar = ProgressBar::new(self.steps_per_epoch as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            .with_prefix(format!("{}/{}", self.epoch, self.epochs))
            .with_message("–");
        self.since = Instant::now();
    }

    /// Notes a step. The clock starts after the first one, in which libtorch prepares its kernels.
    pub fn step(&mut self, loss: &Tensor) -> Result<(), TchError> {
        self.steps += 1;
        self.unread.push(loss.f_detach()?);
        if self.unread.len() == POINT {
            self.read_losses()?;
        }
        if self.steps == 1 {
            self.synchronize();
            self.since = Instant::now();
        }
        self.bar.inc(1);
        Ok(())
    }

    /// Stops the clock: what follows is no training.
    pub fn pause(&mut self) -> Result<(), TchError> {
        self.read_losses()?;
        self.synchronize();
        self.timed += self.since.elapsed();
        Ok(())
    }

    pub fn end_epoch(&mut self, accuracy: f64) {
        self.bar.finish_and_clear();
        let Self { epoch, epochs, .. } = self;
        let loss = self.curve.last().map_or(f64::NAN, |(_, loss)| *loss);
        let accuracy = 100.0 * accuracy;
        println!("  epoch {epoch}/{epochs}  loss {loss:.4}  test accuracy {accuracy:.2} %");
    }

    /// Mean time of an epoch's training, tests excluded.
    pub fn seconds_per_epoch(&self) -> f64 {
        let timed_steps = self.steps.saturating_sub(1).max(1);
        self.timed.as_secs_f64() / timed_steps as f64 * self.steps_per_epoch as f64
    }

    /// Points of (epochs trained, mean loss of the steps since the last point).
    pub fn into_curve(self) -> Vec<(f64, f64)> {
        self.curve
    }

    fn read_losses(&mut self) -> Result<(), TchError> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let losses = Tensor::f_stack(&self.unread, 0)?;
        let loss = losses.f_mean(tch::Kind::Double)?.f_double_value(&[])?;
        self.unread.clear();
        self.bar.set_message(format!("{loss:.4}"));
        self.curve.push((self.steps as f64 / self.steps_per_epoch as f64, loss));
        Ok(())
    }

    fn synchronize(&self) {
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
    }
}
