//! Why a region could not be entered.

use tch::{Device, Kind, TchError};

use crate::error::first_line;

/// Why a region could not be entered. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutocastError {
    /// Operations of the device cannot be cast.
    #[error("{device:?} has no autocast: use `Device::Cpu`, `Device::Cuda` or `Device::Mps`")]
    Device {
        /// The device.
        device: Device,
    },
    /// The 16-bit type of a region, given at run time, is none.
    #[error("a region computes in Half or BFloat16, not in {kind:?}")]
    Kind {
        /// The type.
        kind: Kind,
    },
    /// libtorch refused to have its lists completed.
    #[error("libtorch's autocast lists for {device:?} cannot be completed: {}", first_line(.source))]
    Lists {
        /// The device.
        device: Device,
        /// What libtorch said.
        source: TchError,
    },
}
