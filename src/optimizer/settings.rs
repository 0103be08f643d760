//! The settings of param groups, to read and to change while training.

use super::{AmpOptimizer, Engine, Optimizer, SettingError};
use crate::{level::OptLevel, loss::LossCount};

/// An optimizer whose settings can be read and changed: one of [`optim`](crate::optim).
#[diagnostic::on_unimplemented(
    message = "the settings of `{Self}` cannot be read",
    label = "a `tch::nn::Optimizer` has `set_lr`, `set_weight_decay` and `set_momentum` instead"
)]
pub trait HasSettings: Engine {
    /// The settings of one param group.
    type Settings: Copy;

    #[doc(hidden)]
    fn settings(&self, group: usize) -> &Self::Settings;

    /// Checks the settings and makes them the group's.
    #[doc(hidden)]
    fn replace(&mut self, group: usize, settings: Self::Settings) -> Result<(), SettingError>;
}

impl<L: OptLevel, O: Optimizer, N: LossCount> AmpOptimizer<L, O, N> {
    /// The settings of a param group, as numbered by `tch`'s `Path::set_group`; those of a group
    /// that has none of its own are the optimizer's.
    pub fn settings<S>(&self, group: usize) -> &S
    where
        O: HasSettings<Settings = S>,
    {
        self.optimizer.settings(group)
    }

    /// Changes the settings of a param group from the next step on: what a schedule does with
    /// torch's `param_groups[group]["weight_decay"] = …`.
    ///
    /// ```no_run
    /// # use tch_amp::{AmpOptimizer, O2, SettingError, optim::Sgd};
    /// # fn f(mut opt: AmpOptimizer<O2, Sgd>) -> Result<(), SettingError> {
    /// opt.update_settings(0, |group| group.momentum = 0.95)?;
    /// assert_eq!(opt.settings(0).momentum, 0.95);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When a new setting is out of range, or no variable is in the group.
    pub fn update_settings<S: Copy>(
        &mut self,
        group: usize,
        change: impl FnOnce(&mut S),
    ) -> Result<(), SettingError>
    where
        O: HasSettings<Settings = S>,
    {
        self.core.check_group(group)?;
        let mut settings = *self.optimizer.settings(group);
        change(&mut settings);
        self.optimizer.replace(group, settings)
    }
}
