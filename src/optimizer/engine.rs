//! What an optimizer has to do for `AmpOptimizer`.

use tch::{TchError, Tensor};

use super::{Param, Selection};
use crate::{
    builder::{BuildError, Listed},
    multi_tensor::{Noise, Tables},
};

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
    /// The optimizer's name in messages.
    fn name(&self) -> &'static str;

    /// Says which variables the optimizer takes: `own` unless it knows better. Changes nothing.
    fn select(&mut self, own: Selection, models: &[Listed]) -> Result<Selection, BuildError>;

    /// Checks the settings against the parameters that the optimizer got.
    fn check(&self, params: &[Param]) -> Result<(), SettingError>;

    /// Updates each parameter that has a gradient, after multiplying the gradient by `factor`;
    /// `noise` is what weights in bf16 without a master are rounded with.
    fn apply(
        &mut self,
        params: &mut [Param],
        grads: &[Option<Tensor>],
        factor: f32,
        noise: Option<Noise>,
        tables: &Tables,
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
    /// A number out of range.
    #[error("{optimizer}: `{setting}` is {value}: {expected}")]
    OutOfRange {
        /// The optimizer.
        optimizer: &'static str,
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// Settings for a group that no variable of the optimizer is in.
    #[error("no variable of the optimizer is in group {group}: see `nn::Path::set_group`")]
    UnknownGroup {
        /// The group.
        group: usize,
    },
}

/// Refuses a setting out of range.
pub(super) fn ensure(
    holds: bool,
    optimizer: &'static str,
    setting: &'static str,
    value: f64,
    expected: &'static str,
) -> Result<(), SettingError> {
    match holds {
        true => Ok(()),
        false => Err(SettingError::OutOfRange { optimizer, setting, value, expected }),
    }
}

/// Refuses a setting that is negative, NaN or infinite.
pub(super) fn ensure_not_negative(
    optimizer: &'static str,
    setting: &'static str,
    value: f64,
) -> Result<(), SettingError> {
    let holds = value.is_finite() && value >= 0.0;
    ensure(holds, optimizer, setting, value, "it must be finite and not negative")
}

/// Refuses a decay rate that is not in [0, 1).
pub(super) fn ensure_beta(
    optimizer: &'static str,
    setting: &'static str,
    beta: f64,
) -> Result<(), SettingError> {
    let range = (0.0..1.0).contains(&beta);
    ensure(range, optimizer, setting, beta, "it must be at least 0 and less than 1")
}
