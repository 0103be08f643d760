//! The loss scale: its settings and its state machine.

mod error;
mod scales;
mod settings;
mod state;

pub use error::ScaleError;
pub(crate) use scales::Scales;
pub use settings::{Dynamic, LossScale, Static};
pub use state::Scaler;
