//! TorchScript modules, whose batch-norm layers cannot be recognised.

use std::any::TypeId;

use tch::TrainableCModule;

use crate::{builder::BuildError, config::Properties};

/// Refuses to keep batch norm in FP32 in a TorchScript module: its running statistics are not in
/// the VarStore, and its parameters' names have lost their paths.
pub(crate) fn check<M>(properties: &Properties) -> Result<(), BuildError> {
    let scripted = typeid::of::<M>() == TypeId::of::<TrainableCModule>();
    let keep = properties.weight_kind().is_some() && properties.keep_batchnorm_fp32 == Some(true);
    match scripted && keep {
        true => Err(BuildError::ScriptedBatchNorm),
        false => Ok(()),
    }
}
