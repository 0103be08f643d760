//! Settings for each param group, FP32 state, one rule.

use std::{collections::BTreeMap, fmt::Debug};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tch::{Kind, TchError, Tensor};

use super::{
    Param, bytes,
    engine::SettingError,
    state::{Prepared, SavedState, StateProblem},
};
use crate::multi_tensor::{
    Noise, Tables, Update,
    cuda::{self, DeviceSettings, Kernels, Row, Rows, RuleKernels},
};

/// The settings of one param group, and the rule they make.
pub(super) trait Settings<const K: usize>: Copy + Debug {
    /// The rule of a parameter's `step`-th update, counted from 1.
    type Rule: Copy + Debug;
    /// What is saved of the settings.
    type Saved: From<Self> + Serialize + DeserializeOwned;
    /// What torch calls the state tensors.
    const STATE: [&'static str; K];

    /// The settings of the same optimizer with saved values.
    fn with(self, saved: Self::Saved) -> Self;
    fn check(&self) -> Result<(), SettingError>;
    fn lr_mut(&mut self) -> &mut f64;
    fn rule(&self, step: u64) -> Self::Rule;
    /// The rule's CUDA kernels, and the settings as these take them; `None` where there are none.
    fn on_gpu(&self) -> Option<(RuleKernels, DeviceSettings)> {
        None
    }
    /// Applies the rules to the parameters that have gradients.
    fn update(updates: &mut [Update<'_, Self::Rule, K>]) -> Result<(), TchError>;

    /// The size of each state tensor of a weight.
    fn sizes(weight: &Tensor) -> [Vec<i64>; K] {
        std::array::from_fn(|_| weight.size())
    }
}

/// Settings and state of an optimizer with `K` state tensors for each parameter.
#[derive(Debug)]
pub(super) struct Groups<S, const K: usize> {
    pub(super) default: S,
    overrides: BTreeMap<usize, S>,
    pub(super) only: Option<Vec<String>>,
    state: Vec<Option<State<K>>>,
}

/// An update by CUDA kernels.
struct OnGpu {
    kernels: &'static Kernels,
    rule: RuleKernels,
    groups: Vec<usize>,
    settings: Vec<DeviceSettings>,
    rows: Rows,
}

impl OnGpu {
    /// The place of a group's settings.
    fn place(&self, group: usize) -> usize {
        self.groups.binary_search(&group).unwrap_or_default()
    }

    fn apply(&self, tables: &Tables, factor: f32) -> Result<(), TchError> {
        cuda::update(self.kernels, self.rule, tables, &self.rows, &self.settings, factor)
    }
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

    pub(super) fn check(&self, params: &[Param]) -> Result<(), SettingError> {
        self.default.check()?;
        for (&group, settings) in &self.overrides {
            settings.check()?;
            if !params.iter().any(|param| param.group() == group) {
                return Err(SettingError::UnknownGroup { group });
            }
        }
        Ok(())
    }

    pub(super) fn apply(
        &mut self,
        params: &mut [Param],
        grads: &[Option<Tensor>],
        factor: f32,
        noise: Option<Noise>,
        tables: &Tables,
    ) -> Result<(), TchError> {
        let mut gpu = self.on_gpu(params, grads);
        let Self { default, overrides, state, .. } = self;
        state.resize_with(params.len(), || None);
        let mut updates = Vec::with_capacity(params.len());
        // Parameters of one group have mostly been updated equally often.
        let mut last: Option<(usize, u64, S::Rule)> = None;
        for ((param, grad), state) in params.iter_mut().zip(grads).zip(state) {
            let Some(grad) = grad else {
                gpu.iter_mut().for_each(|gpu| gpu.rows.skip());
                continue;
            };
            let param_group = param.group();
            let settings = overrides.get(&param_group).unwrap_or(default);
            let state = match state {
                Some(state) => state,
                None => state.insert(State::zero::<S>(param.full())?),
            };
            state.steps += 1;
            let noise = noise.map(|noise| noise.of(param.name()));
            let (weight, copy) = param.full_and_copy();
            if let Some(gpu) = &mut gpu {
                let (copy, state, step) = (copy.as_deref(), &state.tensors, state.steps);
                let group = gpu.place(param_group);
                if gpu.rows.push(&Row { grad, weight, copy, state, noise, group, step })? {
                    continue;
                }
                gpu.rows.skip();
            }
            let rule = match last {
                Some((group, steps, rule)) if (group, steps) == (param_group, state.steps) => rule,
                _ => settings.rule(state.steps),
            };
            last = Some((param_group, state.steps, rule));
            let state = &mut state.tensors;
            updates.push(Update { rule, grad, factor, weight, noise, copy, state });
        }
        if let Some(gpu) = gpu {
            gpu.apply(tables, factor)?;
        }
        S::update(&mut updates)
    }

    /// What an update on a GPU needs, where there are kernels for the rule and the device.
    fn on_gpu(&self, params: &[Param], grads: &[Option<Tensor>]) -> Option<OnGpu> {
        let (rule, _) = self.default.on_gpu()?;
        let mut devices = grads.iter().flatten().map(Tensor::device);
        let device = devices.next().filter(|device| devices.all(|other| other == *device))?;
        let kernels = Kernels::of(device)?;
        let fits = |(param, grad): (&Param, &Option<Tensor>)| {
            let Some(grad) = grad else { return true };
            Rows::fits(grad, param.full(), param.master().map(|_| param.weight()))
        };
        if rule.takes_all() && !params.iter().zip(grads).all(fits) {
            return None;
        }
        let mut groups: Vec<_> = params.iter().map(Param::group).collect();
        groups.sort_unstable();
        groups.dedup();
        let settings = groups.iter().map(|&group| Some(self.settings(group).on_gpu()?.1));
        let settings = settings.collect::<Option<_>>()?;
        Some(OnGpu { kernels, rule, groups, settings, rows: Rows::default() })
    }

    pub(super) fn set_lr(&mut self, group: Option<usize>, lr: f64) {
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

    pub(super) fn state_bytes(&self) -> usize {
        self.state.iter().flatten().flat_map(|state| &state.tensors).map(bytes).sum()
    }

    pub(super) fn saved(&self, params: &[Param]) -> Result<SavedState, serde_json::Error> {
        let value = |settings: S| serde_json::to_value(S::Saved::from(settings));
        let groups = self.overrides.iter().map(|(&group, &settings)| Ok((group, value(settings)?)));
        let updated = params.iter().zip(&self.state);
        let steps =
            updated.filter_map(|(p, state)| Some((p.name().to_owned(), state.as_ref()?.steps)));
        Ok(SavedState {
            settings: value(self.default)?,
            groups: groups.collect::<Result<_, serde_json::Error>>()?,
            steps: steps.collect(),
        })
    }

    pub(super) fn state_of(&self, param: usize) -> Option<&[Tensor]> {
        Some(&self.state.get(param)?.as_ref()?.tensors)
    }

    /// The optimizer with a saved state, but for the values of its tensors, which share their memory
    /// with those here.
    fn restored(&self, saved: &SavedState, params: &[Param]) -> Result<Self, StateProblem> {
        let settings = |value: &Value| -> Result<S, StateProblem> {
            Ok(self.default.with(serde_json::from_value(value.clone())?))
        };
        let groups = saved.groups.iter().map(|(&group, value)| Ok((group, settings(value)?)));
        let mut restored = Self {
            default: settings(&saved.settings)?,
            overrides: groups.collect::<Result<_, StateProblem>>()?,
            only: self.only.clone(),
            state: Vec::with_capacity(params.len()),
        };
        restored.check(params)?;
        for (index, param) in params.iter().enumerate() {
            let live = self.state.get(index).and_then(Option::as_ref);
            let state = match (saved.steps.get(param.name()), live) {
                (None, _) => None,
                (Some(&steps), None) => Some(State { steps, ..State::zero::<S>(param.full())? }),
                (Some(&steps), Some(live)) => Some(State {
                    steps,
                    tensors: live.tensors.each_ref().map(Tensor::shallow_clone),
                }),
            };
            restored.state.push(state);
        }
        Ok(restored)
    }

    pub(super) fn prepare<'o>(
        &'o mut self,
        saved: &SavedState,
        params: &[Param],
    ) -> Result<Prepared<'o>, StateProblem> {
        let restored = self.restored(saved, params)?;
        let tensors = |state: &State<K>| state.tensors.iter().map(Tensor::shallow_clone).collect();
        let states = restored.state.iter().enumerate();
        let tensors = states.filter_map(|(param, state)| Some((param, tensors(state.as_ref()?))));
        Ok(Prepared { tensors: tensors.collect(), commit: Box::new(move || *self = restored) })
    }
}

impl<const K: usize> State<K> {
    fn zero<S: Settings<K>>(weight: &Tensor) -> Result<Self, TchError> {
        let options = (Kind::Float, weight.device());
        let tensors = S::sizes(weight).map(|size| Tensor::f_zeros(size, options));
        let tensors = tensors.into_iter().collect::<Result<Vec<_>, _>>()?;
        let tensors = tensors.try_into();
        let tensors = tensors.map_err(|_| TchError::Shape("optimizer state".to_owned()))?;
        Ok(Self { steps: 0, tensors })
    }
}
