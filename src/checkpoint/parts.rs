//! What takes part in a checkpoint: the models and optimizers of one `build`.

use std::{collections::HashMap, sync::Arc};

use tch::Device;

use super::PartsError;
use crate::{
    config::Properties,
    level::OptLevel,
    libtorch::{TensorId, tensor_id},
    loss::LossCount,
    model::{AmpModel, Shared, Variable},
    optimizer::{AmpOptimizer, Core, HasState, Optimizer, Param},
    tuples::for_tuples,
};

/// What [`Checkpoint::new`](super::Checkpoint::new) takes as models: a reference to an
/// [`AmpModel`], or a tuple, array or `Vec` of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model that a checkpoint takes",
    label = "expected `&model`, as `build` returned it; several go into a tuple: `(&a, &b)`"
)]
pub trait CheckpointModels {
    #[doc(hidden)]
    fn add_to<'m>(&'m self, parts: &mut Vec<ModelPart<'m>>);
}

/// What [`Checkpoint::new`](super::Checkpoint::new) takes as optimizers: a mutable reference to an
/// [`AmpOptimizer`], a tuple, array or `Vec` of them, or `()` for a model without optimizers.
///
/// `S` is [`WithState`] where their state takes part, else [`WithoutState`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer that a checkpoint takes",
    label = "expected `&mut opt`, as `build` returned it; several go into a tuple: `(&mut a, &mut b)`"
)]
pub trait CheckpointOptimizers<S> {
    #[doc(hidden)]
    fn add_to<'o>(&'o mut self, parts: &mut Vec<OptimizerPart<'o>>);
}

/// The state of the optimizers takes part.
#[derive(Debug)]
pub enum WithState {}

/// The state of the optimizers does not take part.
#[derive(Debug)]
pub enum WithoutState {}

/// A model that takes part.
#[derive(Debug)]
pub struct ModelPart<'m>(pub(super) &'m Arc<Shared>);

/// An optimizer that takes part.
#[derive(Debug)]
pub struct OptimizerPart<'o> {
    pub(super) core: &'o mut Core,
    /// What the optimizer is called in messages.
    pub(super) name: &'static str,
    pub(super) state: Option<&'o mut dyn HasState>,
}

impl<L: OptLevel, M> CheckpointModels for AmpModel<L, M> {
    fn add_to<'m>(&'m self, parts: &mut Vec<ModelPart<'m>>) {
        parts.push(ModelPart(self.shared()));
    }
}

impl<L: OptLevel, O: HasState, N: LossCount> CheckpointOptimizers<WithState>
    for AmpOptimizer<L, O, N>
{
    fn add_to<'o>(&'o mut self, parts: &mut Vec<OptimizerPart<'o>>) {
        let Self { optimizer, core, .. } = self;
        parts.push(OptimizerPart { core, name: optimizer.name(), state: Some(optimizer) });
    }
}

impl<L: OptLevel, O: Optimizer, N: LossCount> CheckpointOptimizers<WithoutState>
    for AmpOptimizer<L, O, N>
{
    fn add_to<'o>(&'o mut self, parts: &mut Vec<OptimizerPart<'o>>) {
        let Self { optimizer, core, .. } = self;
        parts.push(OptimizerPart { core, name: optimizer.name(), state: None });
    }
}

impl<T: CheckpointModels> CheckpointModels for &T {
    fn add_to<'m>(&'m self, parts: &mut Vec<ModelPart<'m>>) {
        (**self).add_to(parts);
    }
}

impl<T: CheckpointModels> CheckpointModels for &mut T {
    fn add_to<'m>(&'m self, parts: &mut Vec<ModelPart<'m>>) {
        (**self).add_to(parts);
    }
}

impl<S, T: CheckpointOptimizers<S>> CheckpointOptimizers<S> for &mut T {
    fn add_to<'o>(&'o mut self, parts: &mut Vec<OptimizerPart<'o>>) {
        (**self).add_to(parts);
    }
}

impl<T: CheckpointModels> CheckpointModels for Vec<T> {
    fn add_to<'m>(&'m self, parts: &mut Vec<ModelPart<'m>>) {
        self.iter().for_each(|model| model.add_to(parts));
    }
}

impl<S, T: CheckpointOptimizers<S>> CheckpointOptimizers<S> for Vec<T> {
    fn add_to<'o>(&'o mut self, parts: &mut Vec<OptimizerPart<'o>>) {
        self.iter_mut().for_each(|optimizer| optimizer.add_to(parts));
    }
}

impl<T: CheckpointModels, const K: usize> CheckpointModels for [T; K] {
    fn add_to<'m>(&'m self, parts: &mut Vec<ModelPart<'m>>) {
        self.iter().for_each(|model| model.add_to(parts));
    }
}

impl<S, T: CheckpointOptimizers<S>, const K: usize> CheckpointOptimizers<S> for [T; K] {
    fn add_to<'o>(&'o mut self, parts: &mut Vec<OptimizerPart<'o>>) {
        self.iter_mut().for_each(|optimizer| optimizer.add_to(parts));
    }
}

impl<S> CheckpointOptimizers<S> for () {
    fn add_to<'o>(&'o mut self, _: &mut Vec<OptimizerPart<'o>>) {}
}

macro_rules! tuples {
    ($(($($part:ident $n:tt),+) $count:literal;)*) => { $(
        impl<$($part: CheckpointModels),+> CheckpointModels for ($($part,)+) {
            fn add_to<'m>(&'m self, parts: &mut Vec<ModelPart<'m>>) {
                $(self.$n.add_to(parts);)+
            }
        }

        impl<S, $($part: CheckpointOptimizers<S>),+> CheckpointOptimizers<S> for ($($part,)+) {
            fn add_to<'o>(&'o mut self, parts: &mut Vec<OptimizerPart<'o>>) {
                $(self.$n.add_to(parts);)+
            }
        }
    )* };
}
for_tuples!(tuples);

/// All that takes part, complete and in the order of `build`.
pub(super) struct Parts<'p> {
    pub(super) models: Vec<&'p Arc<Shared>>,
    pub(super) optimizers: Vec<OptimizerPart<'p>>,
    /// The variables of all models.
    pub(super) variables: Vec<Variable>,
    pub(super) properties: Properties,
    owners: HashMap<TensorId, Owner>,
}

/// The optimizer of a variable and the variable's place in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) optimizer: usize,
    pub(super) param: usize,
}

impl<'p> Parts<'p> {
    /// Collects the parts, takes up layers that were added to the models, and checks that none is
    /// left out.
    pub(super) fn gather<S>(
        models: &'p impl CheckpointModels,
        optimizers: &'p mut impl CheckpointOptimizers<S>,
    ) -> Result<Self, PartsError> {
        let (mut model_parts, mut optimizer_parts) = (Vec::new(), Vec::new());
        models.add_to(&mut model_parts);
        optimizers.add_to(&mut optimizer_parts);
        let mut models: Vec<_> = model_parts.into_iter().map(|ModelPart(model)| model).collect();
        models.sort_by_key(|model| model.place().index);
        optimizer_parts.sort_by_key(|part| part.core.number);
        let properties = check(&models, &optimizer_parts)?;
        models.iter().try_for_each(|model| model.take_up())?;
        let mut owners = HashMap::new();
        for (optimizer, part) in optimizer_parts.iter_mut().enumerate() {
            part.core.take_up()?;
            for (index, param) in part.core.params.iter().enumerate() {
                owners.insert(tensor_id(param.weight()), Owner { optimizer, param: index });
            }
        }
        let variables = models.iter().flat_map(|model| model.variables()).collect();
        Ok(Self { models, optimizers: optimizer_parts, variables, properties, owners })
    }

    /// The devices whose generators the models use: the CPU, and those of the variables.
    pub(super) fn devices(&self) -> Vec<Device> {
        let mut devices = vec![Device::Cpu];
        for device in self.variables.iter().map(|variable| variable.tensor.device()) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    /// Who trains a variable.
    pub(super) fn owner(&self, variable: &Variable) -> Option<Owner> {
        self.owners.get(&tensor_id(&variable.tensor)).copied()
    }

    /// The parameter that a variable is for its optimizer.
    pub(super) fn param(&self, variable: &Variable) -> Option<&Param> {
        let Owner { optimizer, param } = self.owner(variable)?;
        self.optimizers[optimizer].core.params.get(param)
    }
}

/// Checks that models and optimizers are all those of one `build`, each once.
fn check(
    models: &[&Arc<Shared>],
    optimizers: &[OptimizerPart<'_>],
) -> Result<Properties, PartsError> {
    let Some(first) = models.first() else { return Err(PartsError::NoModels) };
    let same_model = |pair: &[&Arc<Shared>]| Arc::ptr_eq(pair[0], pair[1]);
    let same_number = |pair: &[OptimizerPart<'_>]| pair[0].core.number == pair[1].core.number;
    let same_place = |pair: &[&Arc<Shared>]| pair[0].place().index == pair[1].place().index;
    if models.windows(2).any(same_model) {
        return Err(PartsError::Twice);
    }
    let scales =
        |pair: &[OptimizerPart<'_>]| Arc::ptr_eq(&pair[0].core.scales, &pair[1].core.scales);
    if models.windows(2).any(same_place)
        || models.iter().any(|model| model.properties() != first.properties())
        || !optimizers.windows(2).all(scales)
    {
        return Err(PartsError::OtherBuild);
    }
    if optimizers.windows(2).any(same_number) {
        return Err(PartsError::Twice);
    }
    for link in optimizers.iter().flat_map(|part| &part.core.models) {
        if !models.iter().any(|model| Arc::ptr_eq(model, link.model())) {
            return Err(PartsError::MissingModel { model: link.model().place().index });
        }
    }
    for model in models {
        for optimizer in model.optimizers() {
            let is_it = |part: &OptimizerPart<'_>| {
                let mut links = part.core.models.iter();
                part.core.number == optimizer && links.any(|link| Arc::ptr_eq(link.model(), model))
            };
            if !optimizers.iter().any(is_it) {
                let model = model.place().index;
                return Err(PartsError::MissingOptimizer { model, optimizer });
            }
        }
    }
    Ok(*first.properties())
}
