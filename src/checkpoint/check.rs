//! Whether a checkpoint is one of this run: its level, options, scales and optimizers.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use super::{
    LoadError, OptionDifference, SettingProblem,
    layout::{self, Description},
    parts::Parts,
};
use crate::{
    optimizer::StateProblem,
    scaler::{Scaler, StateError},
};

/// What of a checkpoint is loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct What {
    pub(super) across_levels: bool,
    pub(super) optimizers: bool,
}

/// Checks all but tensors and scales.
pub(super) fn settings(
    parts: &Parts<'_>,
    path: &Path,
    saved: &Description,
    what: What,
) -> Result<(), LoadError> {
    if !what.across_levels {
        options(parts, path, saved)?;
    }
    if what.optimizers {
        optimizers(parts, path, saved)?;
        places(parts, path, saved)?;
    }
    Ok(())
}

/// Without the same level and options, training does not go on as it was.
fn options(parts: &Parts<'_>, path: &Path, saved: &Description) -> Result<(), LoadError> {
    let path = path.to_owned();
    let here = parts.properties.opt_level;
    if saved.level != here {
        return Err(LoadError::Level { path, saved: saved.level, here });
    }
    let here = layout::options(&parts.properties, &parts.models);
    let missing = || "not known".to_owned();
    let names: BTreeSet<_> = here.keys().chain(saved.options.keys()).collect();
    let options = names.into_iter().map(|option| OptionDifference {
        option: option.clone(),
        saved: saved.options.get(option).cloned().unwrap_or_else(missing),
        here: here.get(option).cloned().unwrap_or_else(missing),
    });
    let options: Vec<_> = options.filter(|option| option.saved != option.here).collect();
    match options.is_empty() {
        true => Ok(()),
        false => Err(LoadError::Options { path, options }),
    }
}

/// The scales as they will be; `None` where they stay as they are.
pub(super) fn scalers(
    parts: &Parts<'_>,
    path: &Path,
    saved: &Description,
    what: What,
) -> Result<Option<Vec<Scaler>>, LoadError> {
    let (Some(first), Some(saved)) = (parts.optimizers.first(), &saved.scalers) else {
        return Ok(None);
    };
    match first.core.scales.restored(saved, what.across_levels) {
        Ok(scalers) => Ok(Some(scalers)),
        Err(
            StateError::Kind { .. }
            | StateError::Setting { .. }
            | StateError::Scale { .. }
            | StateError::OverflowsLeft { .. },
        ) if what.across_levels => Ok(None),
        Err(source) => Err(LoadError::Scalers { path: path.to_owned(), source }),
    }
}

/// The optimizers must be those whose state was saved.
fn optimizers(parts: &Parts<'_>, path: &Path, saved: &Description) -> Result<(), LoadError> {
    let path = path.to_owned();
    let (saved, here) = (&saved.optimizers, &parts.optimizers);
    if saved.len() != here.len() {
        return Err(LoadError::OptimizerCount { path, saved: saved.len(), here: here.len() });
    }
    for (optimizer, (saved, here)) in saved.iter().zip(here).enumerate() {
        if saved.state.is_none() {
            return Err(LoadError::WithoutState { path, optimizer });
        }
        if saved.kind != here.name {
            let (saved, here) = (saved.kind.clone(), here.name);
            return Err(LoadError::OptimizerKind { path, optimizer, saved, here });
        }
    }
    Ok(())
}

/// Each parameter must be in its optimizer and group.
fn places(parts: &Parts<'_>, path: &Path, saved: &Description) -> Result<(), LoadError> {
    let mut places = HashMap::new();
    for (number, optimizer) in saved.optimizers.iter().enumerate() {
        places.extend(optimizer.params.iter().map(|(name, &group)| (name, (number, group))));
    }
    let shown = |place: Option<(usize, usize)>| match place {
        Some((optimizer, group)) => format!("group {group} of optimizer {optimizer}"),
        None => "no optimizer".to_owned(),
    };
    for variable in &parts.variables {
        let owner = parts.owner(variable).zip(parts.param(variable));
        let here = owner.map(|(owner, param)| (owner.optimizer, param.group()));
        let saved = places.get(&variable.name).copied();
        if saved != here {
            let (path, name) = (path.to_owned(), variable.name.clone());
            return Err(LoadError::Place { path, name, saved: shown(saved), here: shown(here) });
        }
    }
    Ok(())
}

/// Why an optimizer's state cannot be prepared.
pub(super) fn setting(path: &Path, optimizer: usize, problem: StateProblem) -> LoadError {
    let problem = match problem {
        StateProblem::Unreadable(error) => SettingProblem::Layout(error.to_string()),
        StateProblem::Setting(error) => SettingProblem::Setting(error),
        StateProblem::Torch(error) => return error.into(),
    };
    LoadError::Setting { path: path.to_owned(), optimizer, problem }
}
