//! Why `build` failed.

use tch::{Device, Kind, TchError};

use crate::{autocast::AutocastError, error::first_line};

/// Why `build` failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The level casts an FP32 model itself.
    #[error(
        "variable `{name}` is {kind:?}: build the model in FP32 (`VarStore::float()`) and let the \
         opt level cast it"
    )]
    NotFloat {
        /// The variable.
        name: String,
        /// Its type.
        kind: Kind,
    },
    /// The optimizer would never update the model.
    #[error(
        "the optimizer does not hold variable `{name}`: build it on the VarStore that is passed \
         with the model"
    )]
    OptimizerOfOtherModel {
        /// The variable.
        name: String,
    },
    /// A path to keep in FP32 leads to no variable.
    #[error("`keep_fp32`: there is no variable under `{path}`")]
    UnknownPath {
        /// The path.
        path: String,
    },
    /// The level keeps batch norm in FP32, but in a TorchScript module it cannot be recognised.
    ///
    /// Raised for a `tch::TrainableCModule`. One that is a part of a struct is not noticed: libtorch
    /// then refuses the first forward pass.
    #[error(
        "a TorchScript module does not tell which of its parameters are batch norm's: set \
         `keep_batchnorm_fp32(false)` and name them in `keep_fp32([…])`, with `_` for `.`"
    )]
    ScriptedBatchNorm,
    /// There is nothing to train.
    #[error("the VarStore has no trainable variables: build the model before the optimizer")]
    NoTrainableVariables,
    /// The optimizer has settings for a group that no variable is in.
    #[error(
        "the optimizer has settings for group {group}, but no variable is in it: see \
         `nn::Path::set_group`"
    )]
    UnknownGroup {
        /// The group.
        group: usize,
    },
    /// An optimizer setting is out of range.
    #[error("{optimizer}: `{setting}` is {value}: {expected}")]
    Setting {
        /// The optimizer.
        optimizer: &'static str,
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// `O1` has no casts on this device.
    #[error(transparent)]
    Autocast(#[from] AutocastError),
    /// The model lives on a device that cannot train.
    #[error("{device:?} cannot train: use `Device::Cpu`, `Device::Cuda` or `Device::Mps`")]
    Device {
        /// The device.
        device: Device,
    },
    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(#[from] TchError),
}
