//! `AmpModel`: a model cast as its level says.

mod batch_norm;
mod forward;
mod running_stats;
mod scripted;
mod variables;

use std::{collections::HashMap, marker::PhantomData, sync::Arc};

use tch::{Device, Kind, TchError, Tensor, nn::VarStore};

pub(crate) use running_stats::RunningStats;
pub use variables::Variable;
pub(crate) use variables::VariableCount;

use crate::{
    autocast::RegionKind, builder::BuildError, config::Properties, level::OptLevel, libtorch,
    optimizer::bytes,
};

/// A model at level `L`: weights, inputs, operations and outputs have the types the level says.
///
/// It is a `tch::nn::ModuleT` when the wrapped module is one. Floating-point inputs are cast at
/// the levels that cast the model, integer and boolean ones never; floating-point outputs are FP32
/// unless [`cast_model_outputs`](crate::builder::AmpBuilder::cast_model_outputs) says otherwise.
///
/// # TorchScript
///
/// A `tch::TrainableCModule` works at `O0` and `O1` as any module. Its VarStore holds its parameters
/// only, `layer.norm.weight` as `layer_norm_weight`, so that batch norm is not recognised: at `O2`
/// and `O3` set `keep_batchnorm_fp32(false)` and name the parameters of batch norm in
/// `keep_fp32([…])`. Its running statistics stay in FP32, but a skipped step does not restore them.
#[derive(Debug)]
pub struct AmpModel<L, M> {
    module: M,
    store: VarStore,
    properties: Properties,
    region: Option<RegionKind>,
    running_stats: Arc<RunningStats>,
    _level: PhantomData<L>,
}

impl<L: OptLevel, M> AmpModel<L, M> {
    /// Checks that the level can cast the model, and lists its variables. Changes nothing.
    pub(crate) fn check(
        store: &VarStore,
        properties: &Properties,
        keep_fp32: &[String],
    ) -> Result<Vec<Variable>, BuildError> {
        let device = store.device();
        if device == Device::Vulkan {
            return Err(BuildError::Device { device });
        }
        region(device, properties)?;
        scripted::check::<M>(properties)?;
        let mut variables = variables::list(store);
        variables::keep_fp32(&mut variables, properties, keep_fp32)?;
        for variable in &variables {
            let kind = variable.tensor.f_kind()?;
            let floating = matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Double);
            if floating || (variable.group.is_some() && kind != Kind::Float) {
                return Err(BuildError::NotFloat { name: variable.name.clone(), kind });
            }
        }
        Ok(variables)
    }

    /// Casts the variables in place, so that every handle on them stays valid.
    pub(crate) fn cast(
        store: VarStore,
        module: M,
        variables: &[Variable],
        properties: Properties,
    ) -> Result<Self, BuildError> {
        let region = region(store.device(), &properties)?;
        let cast = |variable: &Variable| variable.cast(&properties);
        let casts = variables.iter().map(cast).collect::<Result<Vec<_>, TchError>>()?;
        for (variable, cast) in variables.iter().zip(casts) {
            drop(libtorch::take_grad(&variable.tensor));
            if let Some(cast) = cast {
                variable.tensor.shallow_clone().f_set_data(&cast)?;
            }
        }
        let running_stats = Arc::new(match properties.plain_step() {
            true => RunningStats::default(),
            false => RunningStats::of(variables),
        });
        Ok(Self { module, store, properties, region, running_stats, _level: PhantomData })
    }

    /// The wrapped module. Calls on it get no casts; see [`run`](Self::run).
    pub fn inner(&self) -> &M {
        &self.module
    }

    /// The variables by name, as the level keeps them. The handles share the model's memory.
    pub fn variables(&self) -> HashMap<String, Tensor> {
        self.store.variables()
    }

    /// The device that the variables live on.
    pub fn device(&self) -> Device {
        self.store.device()
    }

    /// The options in force.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Bytes held by the variables, running statistics included.
    pub fn weight_bytes(&self) -> usize {
        self.store.variables().values().map(bytes).sum()
    }

    /// Stops all variables from being trained.
    pub fn freeze(&mut self) {
        self.store.freeze();
    }

    /// Lets all trainable variables be trained again.
    pub fn unfreeze(&mut self) {
        self.store.unfreeze();
    }

    pub(crate) fn running_stats(&self) -> Arc<RunningStats> {
        Arc::clone(&self.running_stats)
    }

    pub(crate) fn variable_count(&self) -> VariableCount {
        VariableCount::of(&self.store)
    }
}

/// The autocast region of the level, if it has one.
fn region(device: Device, properties: &Properties) -> Result<Option<RegionKind>, BuildError> {
    let kind = properties.opt_level.low_precision();
    match kind.filter(|_| properties.enabled && properties.patch_torch_functions) {
        Some(kind) => Ok(Some(RegionKind::new(device, kind)?)),
        None => Ok(None),
    }
}
