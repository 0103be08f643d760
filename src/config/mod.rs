//! The same rules for levels and options that are known only at run time.

mod any_level;
mod properties;
mod resolve;

pub use any_level::{AnyLevel, LevelVisitor};
pub use properties::Properties;
pub use resolve::{AmpConfig, DType, LossScaleConfig, OptionError};
