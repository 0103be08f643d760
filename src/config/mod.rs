//! The same rules for levels and options that are known only at run time.

mod any_level;
mod error;
mod loss_scale;
mod properties;
mod resolve;
mod values;

pub use any_level::{AnyLevel, LevelVisitor};
pub use error::OptionError;
pub use properties::Properties;
pub use resolve::AmpConfig;
pub use values::{DType, LossScaleConfig};
