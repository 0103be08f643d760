//! What a model shares with the optimizers that train it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tch::{TchError, nn::Variables};

use super::{RunningStats, Variable, variables};
use crate::{
    builder::BuildError,
    config::Properties,
    libtorch::{TensorId, tensor_id},
    optimizer::{Param, Selection},
};

/// A model as `build` and the optimizers see it: its variables, those that are added later, and its
/// running statistics.
#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<Mutex<Variables>>,
    place: Place,
    properties: Properties,
    keep_fp32: Vec<String>,
    running_stats: RunningStats,
    known: Mutex<Known>,
}

/// Which variables are taken care of, and the optimizers with the parameters that wait for them.
#[derive(Debug, Default)]
struct Known {
    counts: (usize, usize),
    ids: HashSet<TensorId>,
    optimizers: Vec<Waiting>,
}

/// The parameters that wait for one optimizer.
#[derive(Debug)]
struct Waiting {
    number: usize,
    selection: Selection,
    params: Vec<Param>,
}

/// Where a model stands among those that `build` got.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Its number when all are counted.
    pub(crate) index: usize,
    /// Its position in the outermost tuple, array or `Vec`.
    pub(crate) position: usize,
    /// What its variables' names begin with: `""`, or `"0.1."`.
    pub(crate) prefix: String,
}

impl Place {
    /// The place of the `n`-th model inside.
    pub(crate) fn inner(&self, n: usize) -> Self {
        let position = if self.prefix.is_empty() { n } else { self.position };
        Self { index: 0, position, prefix: format!("{}{n}.", self.prefix) }
    }
}

impl Shared {
    pub(crate) fn new(
        store: Arc<Mutex<Variables>>,
        place: Place,
        properties: Properties,
        keep_fp32: Vec<String>,
    ) -> Self {
        let (running_stats, known) = Default::default();
        Self { store, place, properties, keep_fp32, running_stats, known }
    }

    /// Lists the variables that are not taken care of, and checks that the level can cast them.
    pub(crate) fn new_variables(&self) -> Result<Vec<Variable>, BuildError> {
        let known = self.known();
        if known.counts == self.counts() {
            return Ok(Vec::new());
        }
        let mut list = variables::list(&self.store, &self.place.prefix);
        list.retain(|variable| !known.ids.contains(&tensor_id(&variable.tensor)));
        for variable in &mut list {
            variable.check()?;
            variable.mark_fp32(&self.properties, &self.keep_fp32);
        }
        Ok(list)
    }

    /// Notes that variables are taken care of.
    pub(crate) fn settle(&self, variables: &[Variable]) {
        if !self.properties.plain_step() {
            self.running_stats.watch(variables);
        }
        let mut known = self.known();
        known.ids.extend(variables.iter().map(|variable| tensor_id(&variable.tensor)));
        known.counts = self.counts();
    }

    /// Casts the variables that were added after `build`, and hands them to their optimizers.
    pub(crate) fn take_up(&self) -> Result<(), BuildError> {
        let new = self.new_variables()?;
        if new.is_empty() {
            return Ok(());
        }
        let mut optimizers = Vec::with_capacity(new.len());
        for variable in &new {
            optimizers.push(self.optimizer_of(variable)?);
        }
        let params = new.iter().map(|variable| Param::new(variable, &self.properties));
        let params = params.collect::<Result<Vec<_>, _>>()?;
        let casts = new.iter().map(|variable| variable.cast(&self.properties));
        let casts = casts.collect::<Result<Vec<_>, _>>()?;
        for (variable, cast) in new.iter().zip(casts) {
            variable.set(cast)?;
        }
        self.settle(&new);
        let mut known = self.known();
        for (param, optimizer) in params.into_iter().zip(optimizers) {
            if let (Some(param), Some(optimizer)) = (param, optimizer) {
                known.optimizers[optimizer].params.push(param);
            }
        }
        Ok(())
    }

    /// The one optimizer that takes a variable; `None` for one that is not trained.
    fn optimizer_of(&self, variable: &Variable) -> Result<Option<usize>, BuildError> {
        let known = self.known();
        let takes = |waiting: &Waiting| waiting.selection.takes(&self.place, &variable.name);
        let mut takers = known.optimizers.iter().enumerate().filter(|(_, w)| takes(w));
        let name = || variable.name.clone();
        match (takers.next(), takers.next()) {
            _ if !variable.trainable() => Ok(None),
            (Some((_, first)), Some((_, second))) => {
                let optimizers = [first.number, second.number];
                Err(BuildError::GivenTwice { name: name(), optimizers })
            }
            (Some((taker, _)), None) => Ok(Some(taker)),
            (None, _) if known.optimizers.is_empty() || !variable.tensor.requires_grad() => {
                Ok(None)
            }
            (None, _) => Err(BuildError::WithoutOptimizer { name: name() }),
        }
    }

    /// All variables.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        variables::list(&self.store, &self.place.prefix)
    }

    /// The numbers of the optimizers that train the model, among all that `build` got.
    pub(crate) fn optimizers(&self) -> Vec<usize> {
        self.known().optimizers.iter().map(|waiting| waiting.number).collect()
    }

    /// The paths that stay in FP32 when the model is cast.
    pub(crate) fn keep_fp32(&self) -> &[String] {
        &self.keep_fp32
    }

    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Lets batch norm's running statistics stand: a step that is skipped later does not go back
    /// behind them.
    pub(crate) fn keep_statistics(&self) {
        self.running_stats.keep_all();
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn before_forward(&self) {
        self.running_stats.before_forward();
    }

    /// The numbers of named and of trainable variables.
    fn counts(&self) -> (usize, usize) {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        (store.named_variables.len(), store.trainable_variables.len())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An optimizer's hold on one of the models it trains.
#[derive(Debug)]
pub(crate) struct Link {
    model: Arc<Shared>,
    /// Among the model's optimizers.
    optimizer: usize,
}

impl Link {
    /// `number` is the optimizer's among all that `build` got.
    pub(crate) fn new(model: &Arc<Shared>, number: usize, selection: Selection) -> Self {
        model.running_stats.add_optimizer();
        let mut known = model.known();
        known.optimizers.push(Waiting { number, selection, params: Vec::new() });
        Self { model: Arc::clone(model), optimizer: known.optimizers.len() - 1 }
    }

    pub(crate) fn model(&self) -> &Arc<Shared> {
        &self.model
    }

    /// The parameters that were added to the model since the last call.
    pub(crate) fn added(&self) -> Result<Vec<Param>, BuildError> {
        self.model.take_up()?;
        Ok(std::mem::take(&mut self.model.known().optimizers[self.optimizer].params))
    }

    /// Lets the running statistics stand.
    pub(crate) fn keep_statistics(&self) {
        self.model.running_stats.keep(self.optimizer);
    }

    /// Puts the running statistics back to what they were before the step.
    pub(crate) fn restore_statistics(&self) -> Result<(), TchError> {
        self.model.running_stats.restore(self.optimizer)
    }
}
