//! Which tensor of a file goes where.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use tch::{Kind, TchError, Tensor};

use super::{LoadError, TensorProblem, layout};
use crate::{model::Variable, optimizer::Param};

/// A tensor that a file should have.
#[derive(Debug)]
pub(super) struct Expected {
    /// Its name, and other names that it may go by.
    pub(super) names: Vec<String>,
    pub(super) kind: Kind,
    pub(super) shape: Vec<i64>,
}

impl Expected {
    /// A variable as checkpoints save it.
    pub(super) fn of(variable: &Variable) -> Self {
        let Variable { name, aliases, tensor, .. } = variable;
        let names = [name].into_iter().chain(aliases).cloned().collect();
        Self { names, kind: layout::saved_kind(tensor.kind()), shape: tensor.size() }
    }
}

/// A tensor that a file has.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) name: String,
    /// What the file calls its type.
    pub(super) dtype: String,
    /// Its type in libtorch, if it has one.
    pub(super) kind: Option<Kind>,
    pub(super) shape: Vec<i64>,
}

/// What goes where.
#[derive(Debug)]
pub(super) struct Matching {
    /// For each that was expected, its index in the file.
    pub(super) indices: Vec<Option<usize>>,
    /// What is in the file only.
    pub(super) unexpected: Vec<TensorProblem>,
    /// What is not in the file.
    pub(super) missing: Vec<TensorProblem>,
    /// What differs in shape or type.
    pub(super) different: Vec<TensorProblem>,
}

/// Finds each expected tensor by its names. `fits` tells whether a type in the file will do,
/// `ignored` which tensors may be there unexpected.
pub(super) fn match_up(
    expected: &[Expected],
    found: &[Found],
    fits: impl Fn(Kind, Kind) -> bool,
    ignored: impl Fn(&str) -> bool,
) -> Matching {
    let by_name: HashMap<_, _> =
        found.iter().enumerate().map(|(index, found)| (found.name.as_str(), index)).collect();
    let known: HashSet<_> = expected.iter().flat_map(|expected| &expected.names).collect();
    let only_there =
        found.iter().filter(|found| !known.contains(&found.name) && !ignored(&found.name));
    let unexpected =
        only_there.map(|found| TensorProblem::Unexpected { name: found.name.clone() }).collect();
    let (mut missing, mut different) = (Vec::new(), Vec::new());
    let mut indices = Vec::with_capacity(expected.len());
    for Expected { names, kind, shape } in expected {
        let index = names.iter().find_map(|name| by_name.get(name.as_str()).copied());
        indices.push(index);
        let Some(there) = index.map(|index| &found[index]) else {
            missing.push(TensorProblem::Missing { name: names[0].clone() });
            continue;
        };
        let name = there.name.clone();
        if there.shape != *shape {
            let (saved, here) = (there.shape.clone(), shape.clone());
            different.push(TensorProblem::Shape { name: name.clone(), saved, here });
        }
        if !there.kind.is_some_and(|there| fits(there, *kind)) {
            let (saved, here) = (there.dtype.clone(), layout::type_name(*kind));
            different.push(TensorProblem::DType { name, saved, here });
        }
    }
    Matching { indices, unexpected, missing, different }
}

impl Matching {
    /// The index of each tensor in the file, if all are there and nothing else.
    pub(super) fn complete(self, path: &Path) -> Result<Vec<usize>, LoadError> {
        let Self { indices, unexpected, missing, different } = self;
        let problems: Vec<_> = [missing, unexpected, different].into_iter().flatten().collect();
        match problems.is_empty() {
            true => Ok(indices.into_iter().flatten().collect()),
            false => Err(LoadError::Tensors { path: path.to_owned(), problems }),
        }
    }
}

/// Where the values of a tensor go.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) tensor: Tensor,
    /// The 16-bit weight of a master.
    pub(super) copy: Option<Tensor>,
}

impl Target {
    /// A variable, by way of its master if it has one.
    pub(super) fn of(variable: &Variable, param: Option<&Param>) -> Self {
        let weight = variable.tensor.shallow_clone();
        match param.and_then(Param::master) {
            Some(master) => Self { tensor: master.shallow_clone(), copy: Some(weight) },
            None => Self { tensor: weight, copy: None },
        }
    }

    /// Gives the 16-bit weight the values of its master.
    fn write_copy(&mut self) -> Result<(), TchError> {
        match &mut self.copy {
            Some(copy) => copy.f_copy_(&self.tensor),
            None => Ok(()),
        }
    }
}

/// Gives each target its new values, which `read` takes from the file, in the order of the file.
pub(super) fn fill(
    path: &Path,
    mut targets: Vec<(usize, Target)>,
    mut read: impl FnMut(usize, &mut Tensor) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    let _no_grad = tch::no_grad_guard();
    targets.sort_by_key(|(index, _)| *index);
    for (index, target) in &mut targets {
        let filled = read(*index, &mut target.tensor).and_then(|()| Ok(target.write_copy()?));
        filled.map_err(|error| LoadError::Interrupted {
            path: path.to_owned(),
            source: Box::new(error),
        })?;
    }
    Ok(())
}
