//! The loss scale: its settings and its state machine.

mod error;
mod settings;
mod state;

pub use error::ScaleError;
pub use settings::{Dynamic, LossScale, Static};
pub use state::Scaler;
