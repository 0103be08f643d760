//! Why a checkpoint cannot be saved or loaded.

mod load;
mod parts;
mod save;
mod tensors;

pub use load::{LoadError, OptionDifference, SettingProblem};
pub use parts::PartsError;
pub use save::SaveError;
pub use tensors::TensorProblem;
