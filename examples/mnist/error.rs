//! Why the demo failed, and the exit code that says so.

use std::{io, path::PathBuf};

use tch_amp::{AnyLevel, BuildError, OptionError, StepError, optimizer::SettingError};

use crate::{data::DataError, plots::PlotError};

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    LearningRate(#[from] SettingError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Torch(#[from] tch::TchError),
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error("there is no {device} on this machine, or this libtorch was built without it")]
    NoDevice { device: String },
    #[error("cannot write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error(
        "{level} reached an accuracy of {:.2} %, which is below {:.1} %",
        100.0 * accuracy,
        100.0 * required
    )]
    Accuracy { level: AnyLevel, accuracy: f64, required: f64 },
    #[error(
        "{level} reached an accuracy of {:.2} %, which is more than {:.1} points from the \
         {:.2} % of O0",
        100.0 * accuracy,
        100.0 * allowed,
        100.0 * baseline
    )]
    Difference { level: AnyLevel, accuracy: f64, baseline: f64, allowed: f64 },
}

impl DemoError {
    /// 2 for what was wrong on the command line, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Option(_) | Self::LearningRate(_) => 2,
            Self::Build(BuildError::Setting { .. }) => 2,
            _ => 1,
        }
    }
}
