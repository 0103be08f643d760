//! What the crate's own optimizers have in common for users, for steps and for checkpoints.

use tch::{TchError, Tensor};

use super::{
    Param,
    adagrad::{Adagrad, AdagradSettings},
    adam::{Adam, AdamSettings, AdamW},
    elementwise::{Groups, Settings},
    engine::{Engine, SettingError},
    lamb::{Lamb, LambSettings},
    novograd::{NovoGrad, NovoGradSettings},
    selection::Selection,
    settings::HasSettings,
    sgd::{Sgd, SgdSettings},
    state::{HasState, Prepared, SavedState, StateProblem},
};
use crate::{
    builder::{BuildError, Listed},
    multi_tensor::{Noise, Tables},
};

/// What every optimizer that wraps [`Groups`] has.
macro_rules! optimizers {
    ($($optimizer:ident: $settings:ty),*) => { $(
        impl $optimizer {
            /// Changes the settings of one param group, starting from the settings made so far.
            pub fn group(mut self, group: usize, change: impl FnOnce(Self) -> Self) -> Self {
                let changed = change(Self(Groups::new(self.0.default)));
                self.0.change_group(group, changed.0.default);
                self
            }

            /// Trains the variables under these paths only: `"head"` stands for `head.weight`, not
            /// for `header.weight`. Default: all variables of the models it is for.
            ///
            /// Where `build` gets several models, paths begin with the model's position, as names do:
            /// `"1.head"`.
            pub fn only<P: Into<String>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
                self.0.only = Some(paths.into_iter().map(Into::into).collect());
                self
            }

            pub(super) fn with(mut self, change: impl FnOnce(&mut $settings)) -> Self {
                change(&mut self.0.default);
                self
            }
        }

        impl HasSettings for $optimizer {
            type Settings = $settings;

            fn settings(&self, group: usize) -> &$settings {
                self.0.settings(group)
            }

            fn replace(&mut self, group: usize, settings: $settings) -> Result<(), SettingError> {
                settings.check()?;
                self.0.change_group(group, settings);
                Ok(())
            }
        }

        impl Engine for $optimizer {
            fn name(&self) -> &'static str {
                stringify!($optimizer)
            }

            fn select(
                &mut self,
                own: Selection,
                _: &[Listed],
            ) -> Result<Selection, BuildError> {
                Ok(self.0.only.clone().map_or(own, Selection::Only))
            }

            fn check(&self, params: &[Param]) -> Result<(), SettingError> {
                self.0.check(params)
            }

            fn apply(
                &mut self,
                params: &mut [Param],
                grads: &[Option<Tensor>],
                factor: f32,
                noise: Option<Noise>,
                tables: &Tables,
            ) -> Result<(), TchError> {
                self.0.apply(params, grads, factor, noise, tables)
            }

            fn set_lr(&mut self, group: Option<usize>, lr: f64) {
                self.0.set_lr(group, lr);
            }

            fn state_bytes(&self) -> usize {
                self.0.state_bytes()
            }
        }

        impl HasState for $optimizer {
            fn state_names(&self) -> &'static [&'static str] {
                &<$settings as Settings<_>>::STATE
            }

            fn saved(&self, params: &[Param]) -> Result<SavedState, serde_json::Error> {
                self.0.saved(params)
            }

            fn state_of(&self, param: usize) -> Option<&[Tensor]> {
                self.0.state_of(param)
            }

            fn prepare<'o>(
                &'o mut self,
                saved: &SavedState,
                params: &[Param],
            ) -> Result<Prepared<'o>, StateProblem> {
                self.0.prepare(saved, params)
            }
        }
    )* };
}
optimizers!(
    Sgd: SgdSettings,
    Adam: AdamSettings,
    AdamW: AdamSettings,
    Adagrad: AdagradSettings,
    NovoGrad: NovoGradSettings,
    Lamb: LambSettings
);
