//! The models of a build with their variables.

use std::{collections::HashMap, sync::Arc};

use super::BuildError;
use crate::{
    config::Properties,
    libtorch::tensor_id,
    model::{Shared, Variable, is_under},
};

/// The models of a build, as they are found.
#[derive(Debug)]
pub struct Listing {
    pub(super) properties: Properties,
    pub(super) keep_fp32: Vec<String>,
    pub(super) models: Vec<Arc<Shared>>,
    error: Option<BuildError>,
}

/// A model with its variables.
#[derive(Debug)]
pub struct Listed {
    pub(crate) model: Arc<Shared>,
    pub(crate) variables: Vec<Variable>,
}

impl Listing {
    pub(super) fn new(properties: Properties, keep_fp32: Vec<String>) -> Self {
        Self { properties, keep_fp32, models: Vec::new(), error: None }
    }

    /// Keeps the first error for the end of the list.
    pub(super) fn note<T>(&mut self, result: Result<T, BuildError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Checks that the level can cast all models, and lists their variables.
    pub(super) fn check(self) -> Result<Vec<Listed>, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let list =
            |model: Arc<Shared>| model.new_variables().map(|variables| Listed { model, variables });
        let listed = self.models.into_iter().map(list).collect::<Result<Vec<_>, _>>()?;
        check_paths("keep_fp32", &self.keep_fp32, &listed)?;
        let mut names = HashMap::new();
        for variable in listed.iter().flat_map(|model| &model.variables) {
            if let Some(other) = names.insert(tensor_id(&variable.tensor), &variable.name) {
                let (name, other) = (variable.name.clone(), other.clone());
                return Err(BuildError::SharedByModels { name, other });
            }
        }
        Ok(listed)
    }
}

/// A path that leads to no variable is a mistake.
pub(super) fn check_paths(
    option: &'static str,
    paths: &[String],
    models: &[Listed],
) -> Result<(), BuildError> {
    for path in paths {
        let mut variables = models.iter().flat_map(|model| &model.variables);
        if !variables.any(|variable| is_under(&variable.name, path)) {
            return Err(BuildError::UnknownPath { option, path: path.clone() });
        }
    }
    Ok(())
}
