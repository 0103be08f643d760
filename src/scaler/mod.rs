//! The loss scale: its settings, its state machine, and what is saved of it.

mod dynamic;
mod error;
mod saved;
mod scales;
mod settings;
mod state;

pub use dynamic::Dynamic;
pub use error::ScaleError;
pub(crate) use saved::restored;
pub use saved::{
    ApexScaler, ApexScalers, SavedScaler, SavedScalers, SavedSettings, ScalerLayout, StateError,
    TorchScaler,
};
pub(crate) use scales::{Left, Scales};
pub use settings::{LossScale, Static};
pub use state::Scaler;
