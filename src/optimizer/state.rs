//! The state of an optimizer, as checkpoints save it and load it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::{TchError, Tensor};

use super::{Engine, Param, SettingError};

/// An optimizer whose state can be saved: one of [`optim`](crate::optim).
#[diagnostic::on_unimplemented(
    message = "the state of a `{Self}` cannot be read, so a checkpoint would lose it",
    label = "use one of `tch_amp::optim`, such as `AdamW`, or call `save_without_optimizer` and `load_without_optimizer`"
)]
pub trait HasState: Engine {
    /// What torch calls the state tensors of each parameter.
    #[doc(hidden)]
    fn state_names(&self) -> &'static [&'static str];

    /// All but the tensors.
    #[doc(hidden)]
    fn saved(&self, params: &[Param]) -> Result<SavedState, serde_json::Error>;

    /// The state tensors of a parameter that was updated.
    #[doc(hidden)]
    fn state_of(&self, param: usize) -> Option<&[Tensor]>;

    /// Makes ready to load, and changes nothing.
    #[doc(hidden)]
    fn prepare<'o>(
        &'o mut self,
        saved: &SavedState,
        params: &[Param],
    ) -> Result<Prepared<'o>, StateProblem>;
}

/// The state of an optimizer but for its tensors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    /// The settings of groups that have none of their own.
    pub(super) settings: Value,
    /// The settings of other groups.
    pub(super) groups: BTreeMap<usize, Value>,
    /// How often each parameter was updated, of those that were.
    pub(crate) steps: BTreeMap<String, u64>,
}

/// A state that is about to be loaded.
#[expect(missing_debug_implementations, reason = "holds a closure")]
pub struct Prepared<'o> {
    /// The tensors to fill, by parameter and by the order of their names.
    pub(crate) tensors: Vec<(usize, Vec<Tensor>)>,
    /// Makes settings, counts and tensors those of the optimizer.
    pub(crate) commit: Box<dyn FnOnce() + 'o>,
}

/// Why a state cannot be loaded.
#[derive(Debug)]
pub enum StateProblem {
    /// Settings of another layout.
    Unreadable(serde_json::Error),
    /// A setting that cannot be.
    Setting(SettingError),
    /// A tensor could not be made.
    Torch(TchError),
}

impl From<serde_json::Error> for StateProblem {
    fn from(error: serde_json::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl From<SettingError> for StateProblem {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

impl From<TchError> for StateProblem {
    fn from(error: TchError) -> Self {
        Self::Torch(error)
    }
}
