//! Why a file cannot be loaded.

use std::{fmt, io, path::PathBuf};

use tch::TchError;

use super::{PartsError, TensorProblem};
use crate::{config::AnyLevel, error::first_line, optimizer::SettingError, scaler::StateError};

/// Why a file cannot be loaded. But for [`Interrupted`](Self::Interrupted), nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Models and optimizers are not those of one `build`.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// The file system refuses.
    #[error("cannot read `{}`: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The header makes no sense.
    #[error("`{}` is no safetensors file, or its header is damaged: {problem}", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// tch cannot read a file of weights.
    #[error("cannot read `{}`: {}", .path.display(), first_line(.source))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TchError,
    },
    /// The file is shorter or longer than its header says.
    #[error(
        "`{}` has {found} bytes, and by its header {expected}: it was {}", .path.display(),
        if found < expected { "cut off" } else { "added to" }
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length that its header says.
        expected: u64,
    },
    /// Some bytes are not those that were written.
    #[error("`{}` is damaged: the checksum of {part} does not match", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where: "the header", or "`fc.weight`".
        part: String,
    },
    /// A safetensors file of another origin, or an export.
    #[error("`{}` holds weights only: read it with `load_weights`", .path.display())]
    WeightsOnly {
        /// The file.
        path: PathBuf,
    },
    /// The layout is that of another version of this crate.
    #[error("`{}` has layout {version}: this version of the crate reads layout 1", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of its layout.
        version: u64,
    },
    /// The levels differ.
    #[error(
        "`{}` was saved at level {saved}, and is loaded at {here}: call `across_levels()` if that \
         is what you want", .path.display()
    )]
    Level {
        /// The file.
        path: PathBuf,
        /// The level in the file.
        saved: AnyLevel,
        /// The level of the models.
        here: AnyLevel,
    },
    /// Options differ, so that training would not go on as it was.
    #[error(
        "`{}` was saved with other options: {}; call `across_levels()` if that is what you want",
        .path.display(), List(.options)
    )]
    Options {
        /// The file.
        path: PathBuf,
        /// All that differ.
        options: Vec<OptionDifference>,
    },
    /// The numbers of optimizers differ.
    #[error("`{}` holds {saved} optimizer(s), the `build` had {here}", .path.display())]
    OptimizerCount {
        /// The file.
        path: PathBuf,
        /// Optimizers in the file.
        saved: usize,
        /// Optimizers here.
        here: usize,
    },
    /// The optimizers differ, so that the state of one is none for the other.
    #[error(
        "optimizer {optimizer} is {here}, in `{}` it is {saved}: `load_without_optimizer` loads the \
         rest", .path.display()
    )]
    OptimizerKind {
        /// The file.
        path: PathBuf,
        /// The optimizer's number.
        optimizer: usize,
        /// Its name in the file.
        saved: String,
        /// Its name here.
        here: &'static str,
    },
    /// The file was written by `save_without_optimizer`.
    #[error(
        "`{}` has no state of optimizer {optimizer}: `load_without_optimizer` loads the rest",
        .path.display()
    )]
    WithoutState {
        /// The file.
        path: PathBuf,
        /// The optimizer's number.
        optimizer: usize,
    },
    /// A parameter belongs to another optimizer or param group than when it was saved.
    #[error("parameter `{name}` is in {here}, in `{}` it is in {saved}", .path.display())]
    Place {
        /// The file.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// "group 1 of optimizer 0", or "no optimizer".
        saved: String,
        /// The same here.
        here: String,
    },
    /// A setting of an optimizer cannot be.
    #[error("optimizer {optimizer} in `{}`: {problem}", .path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The optimizer's number.
        optimizer: usize,
        /// Why.
        problem: SettingProblem,
    },
    /// The tensors are not those of the models and optimizers.
    #[error("the tensors of `{}` do not fit:{}", .path.display(), Lines(.problems))]
    Tensors {
        /// The file.
        path: PathBuf,
        /// All that do not fit, by name.
        problems: Vec<TensorProblem>,
    },
    /// The state of the loss scales does not fit.
    #[error("`{}`: {source}", .path.display())]
    Scalers {
        /// The file.
        path: PathBuf,
        /// Why.
        source: StateError,
    },
    /// The user's value is of another type.
    #[error("the value in `{}` is not of the type that was asked for: {problem}", .path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// What its `Deserialize` says.
        problem: String,
    },
    /// Reading failed after all of the file had been read and checked once. Some tensors have their
    /// new values, the others their old ones: load again before you go on.
    #[error("reading `{}` failed half-way: {source}; load again before you go on", .path.display())]
    Interrupted {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<LoadError>,
    },
    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(#[from] TchError),
}

/// Why a saved setting of an optimizer is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingProblem {
    /// Out of range, or for a group that no parameter is in.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Not of this optimizer.
    #[error("its settings are of another layout: {0}")]
    Layout(String),
}

/// An option that is not the same in a file and here.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{option}` is {saved} in the file and {here} here")]
#[non_exhaustive]
pub struct OptionDifference {
    /// The option.
    pub option: String,
    /// Its value in the file.
    pub saved: String,
    /// Its value here.
    pub here: String,
}

struct List<'a, T>(&'a Vec<T>);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

struct Lines<'a, T>(&'a Vec<T>);

impl<T: fmt::Display> fmt::Display for Lines<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|item| write!(f, "\n  {item}"))
    }
}
