//! What an `AmpOptimizer` is besides the optimizer it wraps.

use std::sync::Arc;

use tch::{TchError, Tensor};

use super::{Param, SettingError};
use crate::{
    builder::BuildError,
    config::Properties,
    model::Link,
    multi_tensor::{Noise, Tables},
    rounding::Rounding,
    scaler::Scales,
};

/// Parameters, models and scales of an [`AmpOptimizer`](super::AmpOptimizer).
#[derive(Debug)]
pub struct Core {
    pub(crate) params: Vec<Param>,
    pub(crate) models: Vec<Link>,
    pub(crate) scales: Arc<Scales>,
    pub(crate) properties: Properties,
    /// The optimizer's among all that `build` got.
    pub(crate) number: usize,
    /// Steps that were applied.
    pub(crate) updates: u64,
    /// What GPU kernels are told of the tensors.
    pub(crate) tables: Tables,
}

impl Core {
    pub(crate) fn new(properties: Properties, scales: Arc<Scales>) -> Self {
        Self {
            params: Vec::new(),
            models: Vec::new(),
            scales,
            properties,
            number: 0,
            updates: 0,
            tables: Tables::default(),
        }
    }

    /// Takes up the parameters that were added to the models.
    pub(crate) fn take_up(&mut self) -> Result<(), BuildError> {
        for model in &self.models {
            self.params.extend(model.added()?);
        }
        Ok(())
    }

    /// Gives masters to 16-bit weights that were frozen until now.
    pub(super) fn ensure_masters(&mut self, grads: &[Option<Tensor>]) -> Result<(), TchError> {
        if !self.properties.keeps_masters() {
            return Ok(());
        }
        let mut touched = self.params.iter_mut().zip(grads).filter(|(_, grad)| grad.is_some());
        touched.try_for_each(|(param, _)| param.ensure_master())
    }

    /// Gives a parameter its master, where the level has masters.
    pub(crate) fn ensure_master(&mut self, param: usize) -> Result<(), TchError> {
        match self.properties.keeps_masters() {
            true => self.params[param].ensure_master(),
            false => Ok(()),
        }
    }

    /// What the next step rounds new weights with.
    pub(super) fn noise(&self) -> Option<Noise> {
        match self.properties.rounding {
            Rounding::Nearest => None,
            Rounding::Stochastic { seed } => Some(Noise::new(seed, self.updates)),
        }
    }

    /// Lets batch norm's running statistics stand.
    pub(crate) fn keep_statistics(&self) {
        self.models.iter().for_each(Link::keep_statistics);
    }

    /// Puts batch norm's running statistics back to what they were before the step.
    pub(crate) fn restore_statistics(&self) -> Result<(), TchError> {
        self.models.iter().try_for_each(Link::restore_statistics)
    }

    pub(super) fn check_group(&self, group: usize) -> Result<(), SettingError> {
        match self.params.iter().any(|param| param.group() == group) {
            true => Ok(()),
            false => Err(SettingError::UnknownGroup { group }),
        }
    }
}
