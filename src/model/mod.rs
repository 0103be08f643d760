//! `AmpModel`: a model cast as its level says.

mod batch_norm;
mod running_stats;
mod variables;

use std::{collections::HashMap, marker::PhantomData, sync::Arc};

use tch::{
    Device, Kind, TchError, Tensor,
    nn::{Module, ModuleT, VarStore},
};

pub(crate) use running_stats::RunningStats;
pub use variables::Variable;
pub(crate) use variables::VariableCount;

use crate::{
    autocast::{AutocastRegion, RegionKind},
    builder::BuildError,
    config::Properties,
    level::OptLevel,
    libtorch,
    optimizer::bytes,
};

/// A model at level `L`: weights, inputs, operations and outputs have the types the level says.
///
/// It is a `tch::nn::ModuleT` when the wrapped module is one. Floating-point inputs are cast at
/// the levels that cast the model, integer and boolean ones never; floating-point outputs are FP32
/// unless [`cast_model_outputs`](crate::builder::AmpBuilder::cast_model_outputs) says otherwise.
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

    /// Calls any method of the wrapped module as a training step would: inside the level's
    /// autocast region, with batch-norm statistics protected.
    ///
    /// Inputs are not cast; [`cast_input`](Self::cast_input) does that. For models whose forward
    /// pass is not `ModuleT`'s.
    pub fn run<R>(&self, call: impl FnOnce(&M) -> R) -> R {
        self.running_stats.before_forward();
        let _region = self.autocast();
        call(&self.module)
    }

    /// Enters the autocast region of level `O1`, for the time the guard lives. At other levels,
    /// nothing happens.
    pub fn autocast(&self) -> Option<AutocastRegion> {
        self.region.map(RegionKind::enter)
    }

    /// Casts a floating-point tensor to the type that the level wants for inputs.
    ///
    /// # Panics
    ///
    /// When libtorch cannot allocate memory, as `Tensor::to_kind` does.
    pub fn cast_input(&self, input: &Tensor) -> Tensor {
        let kind = self.properties.cast_model_type.filter(|_| self.properties.enabled);
        cast(input, kind)
    }

    /// Casts a floating-point tensor to the type of the model's outputs.
    ///
    /// # Panics
    ///
    /// When libtorch cannot allocate memory, as `Tensor::to_kind` does.
    pub fn cast_output(&self, output: Tensor) -> Tensor {
        let kind = self.properties.cast_model_outputs.unwrap_or(Kind::Float);
        cast(&output, Some(kind).filter(|_| self.properties.enabled))
    }

    /// The forward pass of a module that does not tell training from evaluation.
    pub fn forward(&self, xs: &Tensor) -> Tensor
    where
        M: Module,
    {
        self.forward_t(xs, true)
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

impl<L: OptLevel, M: ModuleT> ModuleT for AmpModel<L, M> {
    /// Casts the input, runs the module, casts the output.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = self.cast_input(xs);
        if train {
            self.running_stats.before_forward();
        }
        let ys = {
            let _region = self.autocast();
            self.module.forward_t(&xs, train)
        };
        self.cast_output(ys)
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

fn cast(tensor: &Tensor, kind: Option<Kind>) -> Tensor {
    match kind {
        Some(kind) if tensor.is_floating_point() => tensor.to_kind(kind),
        _ => tensor.shallow_clone(),
    }
}
