//! `AmpOptimizer`: an optimizer with FP32 masters and a scale for each loss.

mod adam;
mod elementwise;
mod engine;
mod param;
mod sgd;
mod tch_optimizer;

use std::{marker::PhantomData, sync::Arc};

use tch::{TchError, Tensor};
use typenum::U1;

pub use engine::{Optimizer, SettingError};
pub(crate) use param::Param;

use crate::{
    config::Properties,
    level::OptLevel,
    loss::LossCount,
    model::{AmpModel, RunningStats, Variable, VariableCount},
    option::DoneByTheStep,
    scaler::Scaler,
    step::{PendingOutcome, Scaled, Step, StepError},
};

/// The optimizers of this crate. Any `tch::nn::Optimizer` works too, built on the model's VarStore.
///
/// They keep FP32 state, take param groups from `tch`'s `Path::set_group`, and follow the rules of
/// `torch.optim`.
pub mod optim {
    pub use super::{
        adam::{Adam, AdamW},
        sgd::Sgd,
    };
}

/// An optimizer for a model at level `L`, with `N` losses that have a scale each.
///
/// One step of training is [`backward_step`](Self::backward_step), or [`begin`](Self::begin) and
/// the methods of [`Step`].
#[derive(Debug)]
pub struct AmpOptimizer<L, O = tch::nn::Optimizer, N = U1> {
    pub(crate) optimizer: O,
    pub(crate) params: Vec<Param>,
    pub(crate) scalers: Vec<Scaler>,
    pub(crate) properties: Properties,
    pub(crate) running_stats: Arc<RunningStats>,
    pub(crate) variable_count: VariableCount,
    _types: PhantomData<(L, N)>,
}

impl<L: OptLevel, O: Optimizer, N: LossCount> AmpOptimizer<L, O, N> {
    pub(crate) fn new<M>(
        optimizer: O,
        variables: Vec<Variable>,
        masters: Vec<Option<Tensor>>,
        model: &AmpModel<L, M>,
    ) -> Self {
        let trainable = variables.into_iter().zip(masters);
        let params = trainable.filter_map(|(v, master)| Param::new(v, master)).collect();
        let properties = *model.properties();
        Self {
            optimizer,
            params,
            scalers: vec![Scaler::new(properties.effective_loss_scale()); N::USIZE],
            properties,
            running_stats: model.running_stats(),
            variable_count: model.variable_count(),
            _types: PhantomData,
        }
    }

    /// Begins a step: gradients start at zero, and the scales are frozen until the step ends.
    ///
    /// The step holds the optimizer, so that nothing can read or change a scale in the middle.
    /// Gradients that the parameters have by other means are dropped. A step that is dropped
    /// before [`Step::step`] changes no weight.
    pub fn begin(&mut self) -> Step<'_, L, O, Scaled, N> {
        Step::new(self)
    }

    /// Trains on one batch: backward, check of the gradients, update of weights and scale.
    ///
    /// `loss` is a scalar computed from the model's output. The outcome can be asked for.
    ///
    /// # Errors
    ///
    /// See [`StepError`].
    ///
    /// # Syncs
    ///
    /// Once, to see whether the gradients are finite.
    pub fn backward_step(&mut self, loss: &Tensor) -> Result<PendingOutcome, StepError> {
        let mut step = self.begin();
        step.backward(loss)?;
        step.unscale()?.step().map(PendingOutcome::new)
    }

    /// Not needed: a step starts without gradients.
    #[doc(hidden)]
    pub fn zero_grad(&mut self)
    where
        O: DoneByTheStep,
    {
    }

    /// See [`Step::step`].
    #[doc(hidden)]
    pub fn step(&mut self)
    where
        O: DoneByTheStep,
    {
    }

    /// The scales, by loss id.
    pub fn scalers(&self) -> &[Scaler] {
        &self.scalers
    }

    /// The options in force.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The wrapped optimizer, to read its settings.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// What the optimizer updates, by name: the FP32 masters where there are any, else the model's
    /// own weights. Apex's `amp.master_params`.
    pub fn master_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.params.iter().map(|param| (param.name(), param.full()))
    }

    /// Sets the learning rate of all groups.
    ///
    /// # Errors
    ///
    /// When the rate is negative, NaN or infinite.
    pub fn set_lr(&mut self, lr: f64) -> Result<(), SettingError> {
        engine::check_lr(lr)?;
        self.optimizer.set_lr(None, lr);
        Ok(())
    }

    /// Sets the learning rate of one group, as numbered by `tch`'s `Path::set_group`.
    ///
    /// # Errors
    ///
    /// When the rate is negative, NaN or infinite, or no variable is in the group.
    pub fn set_lr_group(&mut self, group: usize, lr: f64) -> Result<(), SettingError> {
        if !self.params.iter().any(|param| param.group() == group) {
            return Err(SettingError::UnknownGroup { group });
        }
        engine::check_lr(lr)?;
        self.optimizer.set_lr(Some(group), lr);
        Ok(())
    }

    /// Bytes held by masters and by the optimizer's state.
    ///
    /// The state of a `tch::nn::Optimizer` cannot be read and is not counted.
    pub fn state_bytes(&self) -> usize {
        let masters = self.params.iter().filter_map(Param::master).map(bytes).sum::<usize>();
        masters + self.optimizer.state_bytes()
    }

    /// Applies gradients multiplied by `factor`.
    pub(crate) fn apply(&mut self, grads: &[Option<Tensor>], factor: f32) -> Result<(), TchError> {
        if self.properties.keeps_masters() {
            let mut touched = self.params.iter_mut().zip(grads).filter(|(_, grad)| grad.is_some());
            touched.try_for_each(|(param, _)| param.ensure_master())?;
        }
        self.optimizer.apply(&mut self.params, grads, factor)
    }
}

/// The bytes that a tensor's elements take.
pub(crate) fn bytes(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}
