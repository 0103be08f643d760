//! What an optimizer has to do for `AmpOptimizer`.

use tch::{TchError, Tensor};

use super::Param;
use crate::{builder::BuildError, model::Variable};

/// An optimizer that can be passed to [`build`](crate::builder::AmpBuilder::build): one of
/// [`optim`](crate::optim), or a `tch::nn::Optimizer`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer that `build` takes",
    label = "expected one of `tch_amp::optim`, or a `tch::nn::Optimizer` built on the model's VarStore"
)]
pub trait Optimizer: Engine {}

#[diagnostic::do_not_recommend]
impl<E: Engine> Optimizer for E {}

/// The crate's side of [`Optimizer`]; it cannot be named outside, which seals the trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer that `build` takes",
    label = "expected one of `tch_amp::optim`, or a `tch::nn::Optimizer` built on the model's VarStore"
)]
pub trait Engine: std::fmt::Debug {
    /// Checks the settings against the model's variables, and changes nothing in them.
    fn attach(&mut self, variables: &[Variable]) -> Result<(), BuildError>;

    /// Updates each parameter that has a gradient, after multiplying the gradient by `factor`.
    fn apply(
        &mut self,
        params: &mut [Param],
        grads: &[Option<Tensor>],
        factor: f32,
    ) -> Result<(), TchError>;

    /// Sets the learning rate of one group, or of all.
    fn set_lr(&mut self, group: Option<usize>, lr: f64);

    /// Bytes held by the optimizer's own state.
    fn state_bytes(&self) -> usize;
}

/// An optimizer setting that cannot be. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// Negative, NaN or infinite.
    #[error("the learning rate is {lr}: it must be finite and not negative")]
    LearningRate {
        /// The rate.
        lr: f64,
    },
    /// No variable is in the group.
    #[error("no variable is in group {group}: see `nn::Path::set_group`")]
    UnknownGroup {
        /// The group.
        group: usize,
    },
}

pub(super) fn check_lr(lr: f64) -> Result<(), SettingError> {
    match lr.is_finite() && lr >= 0.0 {
        true => Ok(()),
        false => Err(SettingError::LearningRate { lr }),
    }
}
