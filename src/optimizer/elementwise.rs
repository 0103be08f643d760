//! What the crate's own optimizers share: settings for each param group, FP32 state, one rule.

use std::{collections::BTreeMap, fmt::Debug};

use tch::{Kind, TchError, Tensor};

use super::{
    Param,
    adam::{Adam, AdamSettings, AdamW},
    bytes,
    engine::{Engine, SettingError},
    selection::Selection,
    settings::HasSettings,
    sgd::{Sgd, SgdSettings},
};
use crate::{
    builder::{BuildError, Listed},
    multi_tensor::{self, Noise, Rule, Update},
};

/// The settings of one param group, and the rule they make.
pub(super) trait Settings<const K: usize>: Copy + Debug {
    /// The rule of a parameter's `step`-th update, counted from 1.
    type Rule: Rule<K>;

    fn check(&self) -> Result<(), SettingError>;
    fn lr_mut(&mut self) -> &mut f64;
    fn rule(&self, step: u64) -> Self::Rule;
}

/// Settings and state of an element-wise optimizer with `K` state tensors for each parameter.
#[derive(Debug)]
pub(super) struct Groups<S, const K: usize> {
    pub(super) default: S,
    overrides: BTreeMap<usize, S>,
    only: Option<Vec<String>>,
    state: Vec<Option<State<K>>>,
}

#[derive(Debug)]
struct State<const K: usize> {
    steps: u64,
    tensors: [Tensor; K],
}

impl<S: Settings<K>, const K: usize> Groups<S, K> {
    pub(super) fn new(default: S) -> Self {
        Self { default, overrides: BTreeMap::new(), only: None, state: Vec::new() }
    }

    pub(super) fn change_group(&mut self, group: usize, settings: S) {
        self.overrides.insert(group, settings);
    }

    pub(super) fn settings(&self, group: usize) -> &S {
        self.overrides.get(&group).unwrap_or(&self.default)
    }

    fn check(&self, params: &[Param]) -> Result<(), SettingError> {
        self.default.check()?;
        for (&group, settings) in &self.overrides {
            settings.check()?;
            if !params.iter().any(|param| param.group() == group) {
                return Err(SettingError::UnknownGroup { group });
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        params: &mut [Param],
        grads: &[Option<Tensor>],
        factor: f32,
        noise: Option<Noise>,
    ) -> Result<(), TchError> {
        let Self { default, overrides, state, .. } = self;
        state.resize_with(params.len(), || None);
        let mut updates = Vec::with_capacity(params.len());
        for ((param, grad), state) in params.iter_mut().zip(grads).zip(state) {
            let Some(grad) = grad else { continue };
            let settings = overrides.get(&param.group()).unwrap_or(default);
            let state = match state {
                Some(state) => state,
                None => state.insert(State::zero(param.full())?),
            };
            state.steps += 1;
            let noise = noise.map(|noise| noise.of(param.name()));
            let (weight, copy) = param.full_and_copy();
            let rule = settings.rule(state.steps);
            let state = &mut state.tensors;
            updates.push(Update { rule, grad, factor, weight, noise, copy, state });
        }
        multi_tensor::update(&mut updates)
    }

    fn set_lr(&mut self, group: Option<usize>, lr: f64) {
        match group {
            Some(group) => {
                let mut settings = *self.settings(group);
                *settings.lr_mut() = lr;
                self.change_group(group, settings);
            }
            None => {
                let all = self.overrides.values_mut().chain([&mut self.default]);
                all.for_each(|settings| *settings.lr_mut() = lr);
            }
        }
    }

    fn state_bytes(&self) -> usize {
        self.state.iter().flatten().flat_map(|state| &state.tensors).map(bytes).sum()
    }
}

impl<const K: usize> State<K> {
    fn zero(weight: &Tensor) -> Result<Self, TchError> {
        let options = (Kind::Float, weight.device());
        let tensors = (0..K).map(|_| Tensor::f_zeros(weight.size(), options));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let tensors = tensors.try_into();
        let tensors = tensors.map_err(|_| TchError::Shape("optimizer state".to_owned()))?;
        Ok(Self { steps: 0, tensors })
    }
}

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
            ) -> Result<(), TchError> {
                self.0.apply(params, grads, factor, noise)
            }

            fn set_lr(&mut self, group: Option<usize>, lr: f64) {
                self.0.set_lr(group, lr);
            }

            fn state_bytes(&self) -> usize {
                self.0.state_bytes()
            }
        }
    )* };
}
optimizers!(Sgd: SgdSettings, Adam: AdamSettings, AdamW: AdamSettings);
