//! Writes all that a training run goes on from.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use tch::{Kind, Tensor};

use super::{
    SaveError,
    layout::{self, DESCRIPTION, Description, SavedOptimizer, VALUE, VERSION},
    parts::Parts,
    progress::Meter,
    write::{Entry, write},
};
use crate::{libtorch, model::Variable, scaler::SavedScalers};

pub(super) fn save(
    parts: &Parts<'_>,
    path: &Path,
    value: &(impl Serialize + ?Sized),
    meter: &mut Meter<'_>,
) -> Result<(), SaveError> {
    let description = serde_json::to_string(&describe(parts)?).map_err(value_error)?;
    let mut encoded = Vec::new();
    ciborium::into_writer(value, &mut encoded).map_err(value_error)?;
    let mut entries = weights(parts, layout::saved_kind);
    entries.extend(states(parts));
    for device in parts.devices() {
        let tensor = libtorch::generator_state(device)?;
        entries.push(Entry { name: layout::generator_name(device), kind: Kind::Uint8, tensor });
    }
    let tensor = Tensor::f_from_slice(&encoded)?;
    entries.push(Entry { name: VALUE.to_owned(), kind: Kind::Uint8, tensor });
    let metadata = BTreeMap::from([FORMAT, (DESCRIPTION, &description)]);
    write(path, entries, metadata, true, meter)
}

/// What other programs look for in safetensors' metadata.
pub(super) const FORMAT: (&str, &str) = ("format", "pt");

fn value_error(error: impl std::fmt::Display) -> SaveError {
    SaveError::Value { problem: error.to_string() }
}

/// Weights, masters in their place where there are any, and buffers.
pub(super) fn weights(parts: &Parts<'_>, kind: impl Fn(Kind) -> Kind) -> Vec<Entry> {
    let entry = |variable: &Variable| {
        let tensor = parts.param(variable).map_or(&variable.tensor, |param| param.full());
        let (name, tensor) = (variable.name.clone(), tensor.shallow_clone());
        Entry { name, kind: kind(tensor.kind()), tensor }
    };
    parts.variables.iter().map(entry).collect()
}

/// The state tensors of the optimizers.
fn states(parts: &Parts<'_>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for part in &parts.optimizers {
        let Some(optimizer) = &part.state else { continue };
        for (index, param) in part.core.params.iter().enumerate() {
            let tensors = optimizer.state_of(index).into_iter().flatten();
            for (state, tensor) in optimizer.state_names().iter().zip(tensors) {
                let name = layout::state_name(state, param.name());
                entries.push(Entry { name, kind: Kind::Float, tensor: tensor.shallow_clone() });
            }
        }
    }
    entries
}

fn describe(parts: &Parts<'_>) -> Result<Description, SaveError> {
    let mut optimizers = Vec::new();
    for part in &parts.optimizers {
        let params = part.core.params.iter();
        let state = part.state.as_ref().map(|state| state.saved(&part.core.params));
        optimizers.push(SavedOptimizer {
            kind: part.name.to_owned(),
            updates: part.core.updates,
            params: params.map(|param| (param.name().to_owned(), param.group())).collect(),
            state: state.transpose().map_err(value_error)?,
        });
    }
    let masters = parts
        .variables
        .iter()
        .filter(|variable| parts.param(variable).is_some_and(|param| param.master().is_some()));
    Ok(Description {
        version: VERSION,
        written_by: concat!("tch-amp ", env!("CARGO_PKG_VERSION")).to_owned(),
        level: parts.properties.opt_level,
        options: layout::options(&parts.properties, &parts.models),
        scalers: parts.scalers()?,
        masters: masters.map(|variable| variable.name.clone()).collect(),
        optimizers,
    })
}

impl Parts<'_> {
    fn scalers(&self) -> Result<Option<SavedScalers>, SaveError> {
        let first = self.optimizers.first();
        Ok(first.map(|part| part.core.scales.save()).transpose()?)
    }
}
