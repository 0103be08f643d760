//! The variables of a VarStore with all that the levels need to know of them.

use std::sync::{Arc, Mutex, PoisonError};

use tch::{
    Kind, TchError, Tensor,
    nn::{VarStore, Variables},
};

use super::batch_norm;
use crate::{builder::BuildError, config::Properties, libtorch};

/// One variable of a model.
#[derive(Debug)]
pub struct Variable {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
    /// The param group of a trainable variable; `None` for others, such as a running mean.
    pub(crate) group: Option<usize>,
    /// Whether it is one of the tensors of a batch-norm layer.
    pub(crate) batch_norm: bool,
    /// Whether it stays in FP32 when the model is cast.
    pub(crate) keep_fp32: bool,
}

impl Variable {
    /// The type that the variable has once the model is cast.
    pub(crate) fn kind_after(&self, properties: &Properties) -> Kind {
        let kind = self.tensor.kind();
        match properties.weight_kind() {
            Some(low) if kind == Kind::Float && !self.keep_fp32 => low,
            _ => kind,
        }
    }

    /// The variable's values in the type it is to have, or `None` where that is the one it has.
    pub(super) fn cast(&self, properties: &Properties) -> Result<Option<Tensor>, TchError> {
        let kind = self.kind_after(properties);
        match kind == self.tensor.kind() {
            true => Ok(None),
            false => self.tensor.f_detach()?.f_to_kind(kind).map(Some),
        }
    }
}

/// Lists each variable once: the trainable ones in the order of their creation, then the others by
/// name. A variable with several names, as tied weights have, goes by the first in the alphabet.
pub(super) fn list(store: &VarStore) -> Vec<Variable> {
    let variables = store.variables_.lock().unwrap_or_else(PoisonError::into_inner);
    let mut named: Vec<_> = variables.named_variables.iter().collect();
    named.sort_by_key(|(name, _)| *name);
    let batch_norms = batch_norm::names(&named);
    let mut buffers: Vec<Variable> = Vec::with_capacity(named.len());
    for (name, tensor) in named {
        let id = libtorch::tensor_id(tensor);
        if buffers.iter().all(|known| libtorch::tensor_id(&known.tensor) != id) {
            let batch_norm = batch_norms.contains(name.as_str());
            let (name, tensor) = (name.clone(), tensor.shallow_clone());
            buffers.push(Variable { name, tensor, group: None, batch_norm, keep_fp32: false });
        }
    }
    let mut list = Vec::with_capacity(buffers.len());
    for trainable in &variables.trainable_variables {
        let id = libtorch::tensor_id(&trainable.tensor);
        let found = buffers.iter().position(|known| libtorch::tensor_id(&known.tensor) == id);
        if let Some(index) = found {
            list.push(Variable { group: Some(trainable.group), ..buffers.remove(index) });
        }
    }
    list.extend(buffers);
    list
}

/// Marks the variables that stay in FP32: batch norm's where the level keeps it, and those under
/// the given paths.
pub(super) fn keep_fp32(
    variables: &mut [Variable],
    properties: &Properties,
    paths: &[String],
) -> Result<(), BuildError> {
    let batch_norm = properties.keep_batchnorm_fp32 == Some(true);
    for variable in variables.iter_mut() {
        variable.keep_fp32 = variable.batch_norm && batch_norm;
    }
    for path in paths {
        let under = |name: &str| {
            name.strip_prefix(path.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut found = variables.iter_mut().filter(|variable| under(&variable.name)).peekable();
        if found.peek().is_none() {
            return Err(BuildError::UnknownPath { path: path.clone() });
        }
        found.for_each(|variable| variable.keep_fp32 = true);
    }
    Ok(())
}

/// Notices variables that were added to a VarStore after `build`.
#[derive(Debug)]
pub(crate) struct VariableCount {
    variables: Arc<Mutex<Variables>>,
    at_build: usize,
}

impl VariableCount {
    pub(super) fn of(store: &VarStore) -> Self {
        let variables = Arc::clone(&store.variables_);
        let at_build = count(&variables);
        Self { variables, at_build }
    }

    /// How many trainable variables the optimizer does not know of.
    pub(crate) fn added(&self) -> usize {
        count(&self.variables).saturating_sub(self.at_build)
    }
}

fn count(variables: &Mutex<Variables>) -> usize {
    variables.lock().unwrap_or_else(PoisonError::into_inner).trainable_variables.len()
}
