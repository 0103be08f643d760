//! The loss scale: its settings and its state machine.

mod settings;
mod state;

pub use settings::{Dynamic, LossScale, ScaleError, Static};
pub use state::Scaler;
