//! `build`: from FP32 models and optimizers to their mixed-precision counterparts.

use std::sync::Arc;

use super::{
    AmpBuilder, BuildError, Models, Optimizers,
    division::Division,
    listing::{Listed, Listing},
    state::State,
};
use crate::{
    config::Properties,
    level::OptLevel,
    loss::LossCount,
    model::Place,
    optimizer::{Core, optim::Sgd},
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
        let scales = Arc::new(scales);
        let mut optimizers = optimizers.wrap(&|| Core::new(self.properties, Arc::clone(&scales)));
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
        self.build(models, Vec::<Sgd>::new()).map(|(models, _)| models)
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
