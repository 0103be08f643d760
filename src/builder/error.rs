//! Why `build` failed.

use tch::{Device, Kind, TchError};

use crate::{autocast::AutocastError, error::first_line, optimizer::SettingError};

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
    /// A parameter belongs to one optimizer.
    #[error(
        "variable `{name}` is given to optimizers {} and {}: divide the variables with \
         `only([\"path\", …])`, or pass as many optimizers as models",
        .optimizers[0], .optimizers[1]
    )]
    GivenTwice {
        /// The variable.
        name: String,
        /// The optimizers' positions.
        optimizers: [usize; 2],
    },
    /// Each VarStore has variables of its own.
    #[error(
        "`{name}` and `{other}` are the same tensor, in two VarStores: put both modules on one \
         VarStore, where a tied variable counts once"
    )]
    SharedByModels {
        /// The variable in one model.
        name: String,
        /// The same in another.
        other: String,
    },
    /// No optimizer would ever update the variable.
    #[error(
        "variable `{name}` is trainable and no optimizer has it: name its path in `only([…])`, or \
         freeze it with `set_requires_grad(false)`"
    )]
    WithoutOptimizer {
        /// The variable.
        name: String,
    },
    /// A path leads to no variable.
    #[error("`{option}`: there is no variable under `{path}`")]
    UnknownPath {
        /// `keep_fp32` or `only`.
        option: &'static str,
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
    #[error(
        "optimizer {optimizer} has no trainable variables: build the model before the optimizer"
    )]
    NoTrainableVariables {
        /// The optimizer's position.
        optimizer: usize,
    },
    /// An optimizer setting is out of range, or for a group that no variable is in.
    #[error(transparent)]
    Setting(#[from] SettingError),
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
