//! The command line, and the way from it to [`AmpConfig`]s.

use std::{fmt, path::PathBuf};

use clap::{Parser, ValueEnum};
use tch::{Device, Kind};
use tch_amp::{
    AmpConfig, AnyLevel, OptionError,
    config::{DType, LossScaleConfig},
};

use crate::error::DemoError;

/// Trains a small convolutional net on MNIST with mixed precision.
#[derive(Debug, Parser)]
#[command(
    name = "mnist",
    after_help = "Files in --data: t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte and, to train on, \
                  train-images-idx3-ubyte,\ntrain-labels-idx1-ubyte. Without the last two, every \
                  fifth of the t10k images tests, and the others train."
)]
pub struct Cli {
    /// O0, O1, O2 or O3; the 16-bit type may be part of it, as in "O2<bf16>"
    #[arg(long, value_name = "LEVEL", default_value = "O2", help_heading = "Mixed precision")]
    opt_level: AnyLevel,
    /// Run O0, O1, O2 and O3 one after the other and compare them
    #[arg(long, conflicts_with = "opt_level", help_heading = "Mixed precision")]
    pub all_levels: bool,
    /// The 16-bit type, f16 or bf16 [default: bf16 on the CPU, f16 elsewhere]
    #[arg(long, value_name = "TYPE", help_heading = "Mixed precision")]
    dtype: Option<DType>,
    /// Keep batch norm in FP32 [default: true at O2, false at O3]
    #[arg(long, value_name = "BOOL", help_heading = "Mixed precision")]
    keep_batchnorm_fp32: Option<bool>,
    /// Keep FP32 copies of the weights [default: true at O2, false at O3]
    #[arg(long, value_name = "BOOL", help_heading = "Mixed precision")]
    master_weights: Option<bool>,
    /// "dynamic" or a number [default: dynamic for f16 at O1 and O2, else 1]
    #[arg(
        long,
        value_name = "SCALE",
        allow_negative_numbers = true,
        help_heading = "Mixed precision"
    )]
    loss_scale: Option<LossScaleConfig>,

    /// sgd has Nesterov momentum 0.9 and weight decay 0.0005
    #[arg(long, value_name = "NAME", default_value = "sgd", help_heading = "Training")]
    optimizer: OptimizerKind,
    /// The learning rate of the first epoch; it falls linearly [default: 0.2 for sgd, else 0.002]
    #[arg(long, allow_negative_numbers = true, help_heading = "Training")]
    lr: Option<f64>,
    /// How often to go through the training images
    #[arg(
        long, value_name = "N", default_value_t = 5, help_heading = "Training",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    epochs: u32,
    /// Images per step
    #[arg(
        long, value_name = "N", default_value_t = 64, help_heading = "Training",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    batch_size: i64,
    /// The seed of the weights and of the order of the images
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Training")]
    seed: i64,
    /// cpu, cuda, cuda:N or mps
    #[arg(
        long, default_value = "cpu", value_parser = parse_device, help_heading = "Training"
    )]
    device: Device,

    /// A folder with MNIST's IDX files, plain or .gz [default: the bundled 10,000 images]
    #[arg(long, value_name = "DIR", help_heading = "Data and results")]
    pub data: Option<PathBuf>,
    /// Train on the first N training images only
    #[arg(
        long, value_name = "N", help_heading = "Data and results",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    pub limit: Option<i64>,
    /// Write the numbers to this file
    #[arg(long, value_name = "FILE", help_heading = "Data and results")]
    pub json: Option<PathBuf>,
    /// Write loss_curves.png and accuracy.png into this folder
    #[arg(long, value_name = "DIR", help_heading = "Data and results")]
    pub plots: Option<PathBuf>,
}

impl Cli {
    /// The mixed-precision options of each run, checked.
    pub fn configs(&self) -> Result<Vec<AmpConfig>, OptionError> {
        let levels = match self.all_levels {
            true => &[AnyLevel::O0, AnyLevel::O1, AnyLevel::O2, AnyLevel::O3][..],
            false => &[self.opt_level],
        };
        let configs = levels.iter().map(|&level| {
            let config = self.config(level);
            config.properties().map(|_| config)
        });
        configs.collect()
    }

    fn config(&self, opt_level: AnyLevel) -> AmpConfig {
        let baseline = self.all_levels && opt_level == AnyLevel::O0;
        let bf16_by_default =
            self.device == Device::Cpu && opt_level.low_precision() == Some(Kind::Half);
        AmpConfig {
            opt_level,
            dtype: match self.dtype {
                Some(dtype) => Some(dtype).filter(|_| !baseline),
                None => bf16_by_default.then_some(DType::Bf16),
            },
            keep_batchnorm_fp32: self.keep_batchnorm_fp32,
            master_weights: self.master_weights,
            loss_scale: self.loss_scale,
            ..AmpConfig::default()
        }
    }

    /// What all runs have in common.
    pub fn settings(&self) -> Result<Settings, DemoError> {
        let exists = match self.device {
            Device::Cuda(index) => (index as i64) < tch::Cuda::device_count(),
            Device::Mps => tch::utils::has_mps(),
            _ => true,
        };
        if !exists {
            return Err(DemoError::NoDevice { device: device_name(self.device) });
        }
        let default_lr = match self.optimizer {
            OptimizerKind::Sgd => 0.2,
            OptimizerKind::Adam | OptimizerKind::AdamW => 2e-3,
        };
        Ok(Settings {
            device: self.device,
            optimizer: self.optimizer,
            lr: self.lr.unwrap_or(default_lr),
            epochs: self.epochs,
            batch_size: self.batch_size,
            seed: self.seed,
        })
    }
}

/// What all runs have in common.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub device: Device,
    pub optimizer: OptimizerKind,
    pub lr: f64,
    pub epochs: u32,
    pub batch_size: i64,
    pub seed: i64,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { optimizer, lr, epochs, batch_size, .. } = self;
        let device = device_name(self.device);
        write!(
            f,
            "{epochs} epochs, batches of {batch_size}, {optimizer:?} with lr {lr}, on {device}"
        )
    }
}

/// An optimizer of `tch_amp::optim`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OptimizerKind {
    Sgd,
    Adam,
    #[value(name = "adamw")]
    AdamW,
}

fn parse_device(name: &str) -> Result<Device, String> {
    let index = name.strip_prefix("cuda:").and_then(|index| index.parse().ok());
    match (name, index) {
        ("cpu", _) => Ok(Device::Cpu),
        ("cuda", _) => Ok(Device::Cuda(0)),
        ("mps", _) => Ok(Device::Mps),
        (_, Some(index)) => Ok(Device::Cuda(index)),
        _ => Err("expected cpu, cuda, cuda:N or mps".to_owned()),
    }
}

fn device_name(device: Device) -> String {
    match device {
        Device::Cpu => format!("cpu ({} threads)", tch::get_num_threads()),
        Device::Cuda(index) => format!("cuda:{index}"),
        Device::Mps => "mps".to_owned(),
        Device::Vulkan => "vulkan".to_owned(),
    }
}
