//! `AmpModel`: a model cast as its level says.

mod batch_norm;
mod running_stats;
mod shared;
mod variables;

use std::{collections::HashMap, marker::PhantomData, sync::Arc};

use tch::{
    Device, Kind, Tensor,
    nn::{Module, ModuleT, Path, VarStore},
};

use running_stats::RunningStats;
pub(crate) use shared::{Link, Place, Shared};
pub use variables::Variable;
pub(crate) use variables::is_under;

use crate::{
    autocast::{AutocastRegion, RegionKind},
    builder::BuildError,
    config::Properties,
    level::OptLevel,
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
        self.shared.before_forward();
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

impl<L: OptLevel, M: ModuleT> ModuleT for AmpModel<L, M> {
    /// Casts the input, runs the module, casts the output.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = self.cast_input(xs);
        if train {
            self.shared.before_forward();
        }
        let ys = {
            let _region = self.autocast();
            self.module.forward_t(&xs, train)
        };
        self.cast_output(ys)
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

fn cast(tensor: &Tensor, kind: Option<Kind>) -> Tensor {
    match kind {
        Some(kind) if tensor.is_floating_point() => tensor.to_kind(kind),
        _ => tensor.shallow_clone(),
    }
}
