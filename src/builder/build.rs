//! From a model and an optimizer to their mixed-precision counterparts.

use tch::{TchError, Tensor, nn::VarStore};

use super::{AmpBuilder, BuildError, state::State};
use crate::{
    config::Properties,
    level::OptLevel,
    loss::LossCount,
    model::{AmpModel, Variable},
    optimizer::{AmpOptimizer, Optimizer},
};

impl<L: OptLevel, S: State, N: LossCount> AmpBuilder<L, S, N> {
    /// Casts the model as the level says and prepares the optimizer, FP32 masters included.
    ///
    /// `model` is the FP32 model with the VarStore that holds its variables; `optimizer` is one of
    /// [`optim`](crate::optim), or a `tch::nn::Optimizer` already built on that VarStore.
    /// Gradients that the variables have are dropped. The options in force go to `tracing` as a
    /// table, at level INFO.
    ///
    /// # Errors
    ///
    /// See [`BuildError`]; model and optimizer are then unchanged, but consumed.
    #[expect(clippy::type_complexity, reason = "the caller takes the pair apart at once")]
    pub fn build<M, O: Optimizer>(
        self,
        model: (VarStore, M),
        mut optimizer: O,
    ) -> Result<(AmpModel<L, M>, AmpOptimizer<L, O, N>), BuildError> {
        let (store, module) = model;
        let variables = AmpModel::<L, M>::check(&store, &self.properties, &self.keep_fp32)?;
        if variables.iter().all(|variable| variable.group.is_none()) {
            return Err(BuildError::NoTrainableVariables);
        }
        optimizer.attach(&variables)?;
        let masters = masters(&variables, &self.properties)?;
        let model = AmpModel::cast(store, module, &variables, self.properties)?;
        let optimizer = AmpOptimizer::new(optimizer, variables, masters, &model);
        tracing::info!(target: "tch_amp", "options in force\n{}", self.properties);
        Ok((model, optimizer))
    }

    /// Casts a model for inference, without an optimizer.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub fn build_model<M>(self, model: (VarStore, M)) -> Result<AmpModel<L, M>, BuildError> {
        let (store, module) = model;
        let variables = AmpModel::<L, M>::check(&store, &self.properties, &self.keep_fp32)?;
        let model = AmpModel::cast(store, module, &variables, self.properties)?;
        tracing::info!(target: "tch_amp", "options in force\n{}", self.properties);
        Ok(model)
    }
}

/// FP32 copies of the weights that are about to be cast; a frozen weight gets its own once it has
/// a gradient.
fn masters(
    variables: &[Variable],
    properties: &Properties,
) -> Result<Vec<Option<Tensor>>, TchError> {
    let needs_master = |variable: &Variable| {
        properties.keeps_masters()
            && variable.kind_after(properties) != variable.tensor.kind()
            && variable.tensor.requires_grad()
    };
    let master = |variable: &Variable| match needs_master(variable) {
        true => variable.tensor.f_detach()?.f_contiguous()?.f_alias_copy().map(Some),
        false => Ok(None),
    };
    variables.iter().map(master).collect()
}
