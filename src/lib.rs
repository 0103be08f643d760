#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic, clippy::unwrap_used))]

pub mod autocast;
pub mod builder;
pub mod castable;
pub mod checkpoint;
pub mod config;
pub mod dtype;
mod error;
pub mod level;
mod libtorch;
pub mod loss;
pub mod model;
mod multi_tensor;
pub mod optimizer;
pub mod option;
mod rounding;
pub mod scaler;
pub mod step;
mod tuples;

pub use builder::{Amp, AmpBuilder, BuildError};
pub use castable::{Castable, KeepFp32};
pub use checkpoint::Checkpoint;
pub use config::{AmpConfig, AnyLevel, LevelVisitor, OptionError, Properties};
pub use dtype::LowPrecision;
#[doc(no_inline)]
pub use half::{bf16, f16};
pub use level::{O0, O1, O2, O3, O4, O5, OptLevel};
pub use model::AmpModel;
pub use multi_tensor::{DriverError, Unavailable, kernels};
pub use optimizer::{AmpOptimizer, Optimizer, SettingError, optim};
pub use rounding::Rounding;
pub use scaler::{Dynamic, LossScale, Scaler, Static};
pub use step::{Step, StepError, StepOutcome, joint};

// The programs of `docs/` are doc tests.
#[cfg(doctest)]
mod docs {
    #[doc = include_str!("../docs/checkpoints.md")]
    mod checkpoints {}
    #[doc = include_str!("../docs/from-apex.md")]
    mod from_apex {}
    #[doc = include_str!("../docs/from-torch.md")]
    mod from_torch {}
}
