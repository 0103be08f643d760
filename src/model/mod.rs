//! `AmpModel`: a model cast as its level says.

mod batch_norm;
mod forward;
mod running_stats;
pub(crate) mod scripted;
mod shared;
mod variables;

use std::{collections::HashMap, marker::PhantomData, sync::Arc};

use tch::{
    Device, Tensor,
    nn::{Path, VarStore},
};

use running_stats::RunningStats;
pub(crate) use shared::{Link, Place, Shared};
pub use variables::Variable;
pub(crate) use variables::is_under;

use crate::{
    autocast::RegionKind, builder::BuildError, config::Properties, level::OptLevel,
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
/// `keep_fp32([…])`. Its running statistics stay in FP32, but a skipped step does not restore them,
/// and a [`Checkpoint`](crate::Checkpoint) does not hold them: save them with the module's own
/// `save`.
#[derive(Debug)]
pub struct AmpModel<L, M> {
    module: M,
    store: VarStore,
    properties: Properties,
    region: Option<RegionKind>,
    shared: Arc<Shared>,
    _level: PhantomData<L>,
}

impl<L: OptLevel, M> AmpModel<L, M> {
    pub(crate) fn new(
        store: VarStore,
        module: M,
        shared: Arc<Shared>,
        properties: Properties,
        region: Option<RegionKind>,
    ) -> Self {
        Self { module, store, properties, region, shared, _level: PhantomData }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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

    /// Makes further layers in the model's VarStore, casts them as the level says, and lets the
    /// model's optimizers train them from their next step on: Apex's and torch's
    /// `add_param_group`.
    ///
    /// `build` gets the wrapped module, to put the layers into, and the VarStore's root. A layer
    /// made under `path.set_group(2)` is in param group 2.
    ///
    /// ```no_run
    /// # use tch::{nn, Device};
    /// # use tch_amp::{Amp, O2, optim::Sgd};
    /// # #[derive(Debug)] struct Net { heads: Vec<nn::Linear> }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = nn::VarStore::new(Device::Cpu);
    /// # let net = Net { heads: vec![nn::linear(store.root(), 8, 8, Default::default())] };
    /// let (mut model, opt) = Amp::<O2>::builder().build((store, net), Sgd::new(0.1))?;
    /// model.add_layers(|net, path| {
    ///     net.heads.push(nn::linear(path / "head2", 8, 3, Default::default()));
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When a new variable is not FP32, or belongs to no optimizer or to two: see [`BuildError`].
    /// The layers are made then, but neither cast nor trained.
    pub fn add_layers<R>(
        &mut self,
        build: impl FnOnce(&mut M, &Path<'_>) -> R,
    ) -> Result<R, BuildError> {
        let made = build(&mut self.module, &self.store.root());
        self.shared.take_up()?;
        Ok(made)
    }
}

/// The autocast region of the level, if it has one.
pub(crate) fn region(
    device: Device,
    properties: &Properties,
) -> Result<Option<RegionKind>, BuildError> {
    if device == Device::Vulkan {
        return Err(BuildError::Device { device });
    }
    let kind = properties.opt_level.low_precision();
    match kind.filter(|_| properties.enabled && properties.patch_torch_functions) {
        Some(kind) => Ok(Some(RegionKind::new(device, kind)?)),
        None => Ok(None),
    }
}
