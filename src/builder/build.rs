//! `build`: from FP32 models and optimizers to their mixed-precision counterparts.

use std::{collections::HashMap, sync::Arc};

use super::{AmpBuilder, BuildError, Models, Optimizers, state::State};
use crate::{
    config::Properties,
    level::OptLevel,
    libtorch::tensor_id,
    loss::LossCount,
    model::{Link, Place, Shared, Variable, is_under},
    optimizer::{Core, Engine, Param, Selection},
    scaler::Scales,
};

impl<L: OptLevel, S: State, N: LossCount> AmpBuilder<L, S, N> {
    /// Casts the models as the level says and prepares the optimizers, FP32 masters included.
    ///
    /// `models` is an FP32 model with the VarStore that holds its variables, `optimizers` one of
    /// [`optim`](crate::optim), or a `tch::nn::Optimizer` already built on that VarStore. Both can
    /// be tuples, arrays or `Vec`s, and what comes back has the same arrangement: [`Models`] and
    /// [`Optimizers`] say which optimizer trains which model.
    ///
    /// ```no_run
    /// # use tch::{Device, nn::{self, VarStore}};
    /// # use tch_amp::{Amp, O1, bf16, optim::Adam};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (store_g, store_d) = (VarStore::new(Device::Cpu), VarStore::new(Device::Cpu));
    /// # let r#gen = nn::linear(store_g.root(), 64, 784, Default::default());
    /// # let disc = nn::linear(store_d.root(), 784, 1, Default::default());
    /// let ((r#gen, disc), (mut opt_g, mut opt_d)) = Amp::<O1<bf16>>::builder()
    ///     .build(((store_g, r#gen), (store_d, disc)), (Adam::new(2e-4), Adam::new(1e-4)))?;
    /// # Ok(()) }
    /// ```
    ///
    /// All optimizers share the scales of the losses. Gradients that the variables have are
    /// dropped. The options in force go to `tracing` as a table, at level INFO.
    ///
    /// # Errors
    ///
    /// See [`BuildError`]; models and optimizers are then unchanged, but consumed.
    #[expect(clippy::type_complexity, reason = "the caller takes the pair apart at once")]
    pub fn build<M: Models, O: Optimizers>(
        self,
        models: M,
        optimizers: O,
    ) -> Result<(M::Built<L>, O::Built<L, N>), BuildError> {
        let counts = [models.count(), optimizers.count()];
        let mut list = Listing::new(self.properties, self.keep_fp32);
        let models = models.wrap(Place::default(), &mut list);
        let listed = list.check()?;
        let scales = Scales::new(self.properties.effective_loss_scale(), N::USIZE);
        let mut optimizers = optimizers.wrap(self.properties, &Arc::new(scales));
        let mut division = Division::new(&listed, counts);
        O::each(&mut optimizers, &mut |engine, core| division.give(engine, core))?;
        division.check()?;
        cast(&listed, &self.properties)?;
        tracing::info!(target: "tch_amp", "options in force\n{}", self.properties);
        Ok((models, optimizers))
    }

    /// Casts models for inference, without optimizers.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub fn build_model<M: Models>(self, models: M) -> Result<M::Built<L>, BuildError> {
        self.build(models, Vec::<crate::optim::Sgd>::new()).map(|(models, _)| models)
    }
}

/// The models of a build, as they are found.
#[derive(Debug)]
pub struct Listing {
    pub(super) properties: Properties,
    pub(super) keep_fp32: Vec<String>,
    pub(super) models: Vec<Arc<Shared>>,
    error: Option<BuildError>,
}

/// A model with its variables.
#[derive(Debug)]
pub struct Listed {
    pub(crate) model: Arc<Shared>,
    pub(crate) variables: Vec<Variable>,
}

impl Listing {
    fn new(properties: Properties, keep_fp32: Vec<String>) -> Self {
        Self { properties, keep_fp32, models: Vec::new(), error: None }
    }

    /// Keeps the first error for the end of the list.
    pub(super) fn note<T>(&mut self, result: Result<T, BuildError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Checks that the level can cast all models, and lists their variables.
    fn check(self) -> Result<Vec<Listed>, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let list =
            |model: Arc<Shared>| model.new_variables().map(|variables| Listed { model, variables });
        let listed = self.models.into_iter().map(list).collect::<Result<Vec<_>, _>>()?;
        check_paths("keep_fp32", &self.keep_fp32, &listed)?;
        let mut names = HashMap::new();
        for variable in listed.iter().flat_map(|model| &model.variables) {
            if let Some(other) = names.insert(tensor_id(&variable.tensor), &variable.name) {
                let (name, other) = (variable.name.clone(), other.clone());
                return Err(BuildError::SharedByModels { name, other });
            }
        }
        Ok(listed)
    }
}

/// A path that leads to no variable is a mistake.
fn check_paths(
    option: &'static str,
    paths: &[String],
    models: &[Listed],
) -> Result<(), BuildError> {
    for path in paths {
        let mut variables = models.iter().flat_map(|model| &model.variables);
        if !variables.any(|variable| is_under(&variable.name, path)) {
            return Err(BuildError::UnknownPath { option, path: path.clone() });
        }
    }
    Ok(())
}

/// Who trains what.
struct Division<'a> {
    models: &'a [Listed],
    /// Each variable with the number of its optimizer.
    taken: HashMap<&'a str, usize>,
    counts: [usize; 2],
    next: usize,
}

impl<'a> Division<'a> {
    /// `counts`: of models and of optimizers.
    fn new(models: &'a [Listed], counts: [usize; 2]) -> Self {
        Self { models, taken: HashMap::new(), counts, next: 0 }
    }

    /// Gives an optimizer its parameters.
    fn give(&mut self, engine: &mut dyn Engine, core: &mut Core) -> Result<(), BuildError> {
        let number = self.next;
        self.next += 1;
        let own = match self.counts {
            [models, optimizers] if models == optimizers && models > 1 => {
                Selection::Position(number)
            }
            _ => Selection::All,
        };
        let selection = engine.select(own, self.models)?;
        if let Selection::Only(paths) = &selection {
            check_paths("only", paths, self.models)?;
        }
        for Listed { model, variables } in self.models {
            let before = core.params.len();
            for variable in variables.iter().filter(|variable| variable.trainable()) {
                if selection.takes(model.place(), &variable.name) {
                    if let Some(first) = self.taken.insert(&variable.name, number) {
                        let (name, optimizers) = (variable.name.clone(), [first, number]);
                        return Err(BuildError::GivenTwice { name, optimizers });
                    }
                    core.params.extend(Param::new(variable, &core.properties)?);
                }
            }
            if core.params.len() > before {
                core.models.push(Link::new(model, number, selection.clone()));
            }
        }
        if core.params.is_empty() {
            return Err(BuildError::NoTrainableVariables { optimizer: number });
        }
        engine.check(&core.params)?;
        Ok(())
    }

    /// A variable that is to be trained and has no optimizer never would be.
    fn check(&self) -> Result<(), BuildError> {
        let mut variables = self.models.iter().flat_map(|model| &model.variables);
        let untrained = |v: &&Variable| {
            v.trainable() && v.tensor.requires_grad() && !self.taken.contains_key(v.name.as_str())
        };
        match variables.find(untrained) {
            Some(variable) if self.next > 0 => {
                Err(BuildError::WithoutOptimizer { name: variable.name.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// Casts all variables, once the casts of all have been made.
fn cast(models: &[Listed], properties: &Properties) -> Result<(), BuildError> {
    let variables = || models.iter().flat_map(|model| &model.variables);
    let casts = variables().map(|variable| variable.cast(properties));
    let casts = casts.collect::<Result<Vec<_>, _>>()?;
    for (variable, cast) in variables().zip(casts) {
        variable.set(cast)?;
    }
    for Listed { model, variables } in models {
        model.settle(variables);
    }
    Ok(())
}
