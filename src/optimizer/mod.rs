//! `AmpOptimizer`: an optimizer with FP32 masters and a scale for each loss.

mod adagrad;
mod adam;
mod core;
mod elementwise;
mod engine;
mod lamb;
mod novograd;
mod param;
mod selection;
mod settings;
mod sgd;
mod state;
mod tch_optimizer;
mod wrappers;

use std::marker::PhantomData;

use tch::{TchError, Tensor};
use typenum::U1;

pub(crate) use self::core::Core;
pub(crate) use engine::Engine;
pub use engine::{Optimizer, SettingError};
pub(crate) use param::Param;
pub(crate) use selection::Selection;
pub use settings::HasSettings;
pub use state::HasState;
pub(crate) use state::{SavedState, StateProblem};

use crate::{
    config::Properties,
    level::OptLevel,
    loss::LossCount,
    option::DoneByTheStep,
    scaler::{SavedScalers, Scaler, ScalerLayout, StateError},
    step::{PendingOutcome, Scaled, Step, StepError},
};
use engine::ensure_not_negative;

/// The optimizers of this crate. Any `tch::nn::Optimizer` works too, built on the model's VarStore.
///
/// They keep FP32 state, take param groups from `tch`'s `Path::set_group`, and follow the rules of
/// `torch.optim` ([`Sgd`](optim::Sgd), [`Adam`](optim::Adam), [`AdamW`](optim::AdamW)) or of Apex
/// ([`Adagrad`](optim::Adagrad), [`NovoGrad`](optim::NovoGrad), [`Lamb`](optim::Lamb)).
pub mod optim {
    pub use super::{
        adagrad::{Adagrad, AdagradSettings},
        adam::{Adam, AdamSettings, AdamW},
        lamb::{Lamb, LambSettings},
        novograd::{NovoGrad, NovoGradSettings},
        sgd::{Sgd, SgdSettings},
    };
    pub use crate::multi_tensor::NormType;
}

/// An optimizer for models at level `L`, with `N` losses that have a scale each.
///
/// One step of training is [`backward_step`](Self::backward_step), or [`begin`](Self::begin) and
/// the methods of [`Step`].
#[derive(Debug)]
pub struct AmpOptimizer<L, O = tch::nn::Optimizer, N = U1> {
    pub(crate) optimizer: O,
    pub(crate) core: Core,
    _types: PhantomData<(L, N)>,
}

impl<L: OptLevel, O: Optimizer, N: LossCount> AmpOptimizer<L, O, N> {
    pub(crate) fn new(optimizer: O, core: Core) -> Self {
        Self { optimizer, core, _types: PhantomData }
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

    /// The scales, by loss id, as they are now. All optimizers of one `build` share them.
    pub fn scalers(&self) -> Vec<Scaler> {
        self.core.scales.all()
    }

    /// The state of all scales, to be saved with any serde format.
    ///
    /// # Errors
    ///
    /// When another optimizer of the same `build` is in the middle of a step.
    pub fn save_scalers(&self) -> Result<SavedScalers, StateError> {
        self.core.scales.save()
    }

    /// Loads the state of all scales, which all optimizers of one `build` share: what
    /// [`save_scalers`](Self::save_scalers) returned, or Apex's or torch's layout.
    ///
    /// The settings stay the builder's, and must be those of the saved state. Apex's and torch's
    /// layouts count no skips, which start at zero.
    ///
    /// # Errors
    ///
    /// When the number of losses, a setting, a scale or a key is not as it should be: see
    /// [`StateError`]. Nothing is changed then.
    pub fn load_scalers(
        &mut self,
        states: &(impl ScalerLayout + ?Sized),
    ) -> Result<(), StateError> {
        self.core.scales.load(states, false)
    }

    /// As [`load_scalers`](Self::load_scalers), for another number of losses: those that both have
    /// are loaded, the others stay as they are.
    ///
    /// # Errors
    ///
    /// As [`load_scalers`](Self::load_scalers), but for the number of losses.
    pub fn load_common_scalers(
        &mut self,
        states: &(impl ScalerLayout + ?Sized),
    ) -> Result<(), StateError> {
        self.core.scales.load(states, true)
    }

    /// The options in force.
    pub fn properties(&self) -> &Properties {
        &self.core.properties
    }

    /// The wrapped optimizer, to read its settings.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// What the optimizer updates, by name: the FP32 masters where there are any, else the model's
    /// own weights. Apex's `amp.master_params`.
    pub fn master_params(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.core.params.iter().map(|param| (param.name(), param.full()))
    }

    /// Sets the learning rate of all groups.
    ///
    /// # Errors
    ///
    /// When the rate is negative, NaN or infinite.
    pub fn set_lr(&mut self, lr: f64) -> Result<(), SettingError> {
        self.change_lr(None, lr)
    }

    /// Sets the learning rate of one group, as numbered by `tch`'s `Path::set_group`.
    ///
    /// # Errors
    ///
    /// When the rate is negative, NaN or infinite, or no variable is in the group.
    pub fn set_lr_group(&mut self, group: usize, lr: f64) -> Result<(), SettingError> {
        self.core.check_group(group)?;
        self.change_lr(Some(group), lr)
    }

    fn change_lr(&mut self, group: Option<usize>, lr: f64) -> Result<(), SettingError> {
        ensure_not_negative(self.optimizer.name(), "lr", lr)?;
        self.optimizer.set_lr(group, lr);
        Ok(())
    }

    /// Bytes held by masters and by the optimizer's state.
    ///
    /// The state of a `tch::nn::Optimizer` cannot be read and is not counted.
    pub fn state_bytes(&self) -> usize {
        let masters = self.core.params.iter().filter_map(Param::master).map(bytes).sum::<usize>();
        masters + self.optimizer.state_bytes()
    }

    /// Applies gradients multiplied by `factor`.
    pub(crate) fn apply(&mut self, grads: &[Option<Tensor>], factor: f32) -> Result<(), TchError> {
        self.core.ensure_masters(grads)?;
        let noise = self.core.noise();
        let Core { params, tables, .. } = &mut self.core;
        self.optimizer.apply(params, grads, factor, noise, tables)?;
        self.core.updates += 1;
        Ok(())
    }
}

/// The bytes that a tensor's elements take.
pub(crate) fn bytes(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}
