//! Reads all that a training run goes on from: everything is checked before anything is changed.

use std::{collections::HashSet, path::Path};

use serde::de::DeserializeOwned;
use tch::{Device, Kind, TchError, Tensor};

use super::{
    LoadError,
    check::{self, What},
    layout::{self, AnyDescription, Description, VALUE, VERSION},
    matching::{Expected, Target, fill, match_up},
    parts::{OptimizerPart, Owner, Parts},
    progress::Meter,
    read::Source,
};
use crate::{libtorch, model::Variable, optimizer::Core};

pub(super) fn load<T: DeserializeOwned>(
    parts: &mut Parts<'_>,
    path: &Path,
    what: What,
    meter: &mut Meter<'_>,
) -> Result<T, LoadError> {
    let mut source = Source::open(path)?;
    let saved = describe(&mut source)?;
    check::settings(parts, path, &saved, what)?;
    let scalers = check::scalers(parts, path, &saved, what)?;
    let devices = parts.devices();
    let owners: Vec<_> = parts.variables.iter().map(|variable| parts.owner(variable)).collect();
    let mut states = States::prepare(&mut parts.optimizers, path, &saved)?;

    let mut expected: Vec<_> = parts.variables.iter().map(Expected::of).collect();
    expected.append(&mut states.expected);
    let ignored = |name: &str| {
        let state = !what.optimizers && name.starts_with("optimizer/");
        state || name.starts_with("generator/") || name == VALUE
    };
    let matching = match_up(&expected, &source.found(), |there, here| there == here, ignored);
    let indices = matching.complete(path)?;
    meter.start(source.bytes_to_read(indices.iter().copied()));
    source.verify_tensors(meter)?;
    let value = value(&mut source)?;
    let generators = generators(&mut source, devices)?;

    states.ensure_masters(&parts.variables, &owners, &saved)?;
    let targets = states.targets(&parts.variables, &owners);
    let mut targets: Vec<_> = indices.into_iter().zip(targets).collect();
    source.stage(&mut targets)?;
    for (device, state) in generators {
        libtorch::set_generator_state(device, &state)?;
    }
    fill(path, targets, |index, tensor| source.fill(index, tensor, meter))?;
    states.commit(&saved);
    if let (Some(first), Some(scalers)) = (parts.optimizers.first(), scalers) {
        first.core.scales.set(scalers);
    }
    parts.models.iter().for_each(|model| model.keep_statistics());
    Ok(value)
}

/// The optimizers, ready to be loaded.
struct States<'o> {
    cores: Vec<&'o mut Core>,
    expected: Vec<Expected>,
    targets: Vec<Target>,
    commits: Vec<Box<dyn FnOnce() + 'o>>,
}

impl<'o> States<'o> {
    fn prepare(
        optimizers: &'o mut [OptimizerPart<'_>],
        path: &Path,
        saved: &Description,
    ) -> Result<Self, LoadError> {
        let mut states = Self {
            cores: Vec::with_capacity(optimizers.len()),
            expected: Vec::new(),
            targets: Vec::new(),
            commits: Vec::new(),
        };
        for (number, OptimizerPart { core, state, .. }) in optimizers.iter_mut().enumerate() {
            let saved = saved.optimizers.get(number).and_then(|saved| saved.state.as_ref());
            if let (Some(state), Some(saved)) = (state, saved) {
                let names = state.state_names();
                let prepared = state.prepare(saved, &core.params);
                let prepared = prepared.map_err(|problem| check::setting(path, number, problem))?;
                for (param, tensors) in prepared.tensors {
                    for (state, tensor) in names.iter().zip(tensors) {
                        let names = vec![layout::state_name(state, core.params[param].name())];
                        let (kind, shape) = (Kind::Float, tensor.size());
                        states.expected.push(Expected { names, kind, shape });
                        states.targets.push(Target { tensor, copy: None });
                    }
                }
                states.commits.push(prepared.commit);
            }
            states.cores.push(core);
        }
        Ok(states)
    }

    /// Gives masters to weights that had one when they were saved, and were frozen here until now.
    fn ensure_masters(
        &mut self,
        variables: &[Variable],
        owners: &[Option<Owner>],
        saved: &Description,
    ) -> Result<(), TchError> {
        let with_master: HashSet<_> = saved.masters.iter().collect();
        for (variable, owner) in variables.iter().zip(owners) {
            if let (Some(owner), true) = (owner, with_master.contains(&variable.name)) {
                self.cores[owner.optimizer].ensure_master(owner.param)?;
            }
        }
        Ok(())
    }

    /// Where variables and states go.
    fn targets(&mut self, variables: &[Variable], owners: &[Option<Owner>]) -> Vec<Target> {
        let target = |(variable, owner): (_, &Option<Owner>)| {
            let param = owner.map(|owner| &self.cores[owner.optimizer].params[owner.param]);
            Target::of(variable, param)
        };
        let mut targets: Vec<_> = variables.iter().zip(owners).map(target).collect();
        targets.append(&mut self.targets);
        targets
    }

    /// Lets the optimizers go on with the states that were loaded.
    fn commit(self, saved: &Description) {
        self.commits.into_iter().for_each(|commit| commit());
        for (core, saved) in self.cores.into_iter().zip(&saved.optimizers) {
            core.updates = saved.updates;
        }
    }
}

/// What a file says of itself.
pub(super) fn describe(source: &mut Source) -> Result<Description, LoadError> {
    source.verify_header()?;
    let path = source.path().to_owned();
    let Some(text) = source.description() else { return Err(LoadError::WeightsOnly { path }) };
    let malformed = |error: serde_json::Error| LoadError::Header {
        path: path.clone(),
        problem: error.to_string(),
    };
    let AnyDescription { version } = serde_json::from_str(text).map_err(malformed)?;
    match version {
        VERSION => serde_json::from_str(text).map_err(malformed),
        version => Err(LoadError::Version { path, version }),
    }
}

/// The user's value.
fn value<T: DeserializeOwned>(source: &mut Source) -> Result<T, LoadError> {
    let bytes = source.bytes_of(VALUE)?.unwrap_or_default();
    ciborium::from_reader(bytes.as_slice()).map_err(|error| LoadError::Value {
        path: source.path().to_owned(),
        problem: error.to_string(),
    })
}

/// The states of the generators that are in use here.
fn generators(
    source: &mut Source,
    devices: Vec<Device>,
) -> Result<Vec<(Device, Tensor)>, LoadError> {
    let mut states = Vec::new();
    for device in devices {
        if let Some(bytes) = source.bytes_of(&layout::generator_name(device))? {
            states.push((device, Tensor::f_from_slice(&bytes)?));
        }
    }
    Ok(states)
}
