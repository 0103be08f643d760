//! The variables of a VarStore with all that the levels need to know of them.

use std::sync::{Mutex, PoisonError};

use tch::{Kind, TchError, Tensor, nn::Variables};

use super::batch_norm;
use crate::{builder::BuildError, config::Properties, libtorch};

/// One variable of a model.
#[derive(Debug)]
pub struct Variable {
    /// With the model's position in front where `build` got several: `"1.fc.weight"`.
    pub(crate) name: String,
    /// The further names of a tied weight.
    pub(crate) aliases: Vec<String>,
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

    /// Whether the variable is one that an optimizer updates.
    pub(crate) fn trainable(&self) -> bool {
        self.group.is_some()
    }

    /// The variable's values in the type it is to have, or `None` where that is the one it has.
    pub(crate) fn cast(&self, properties: &Properties) -> Result<Option<Tensor>, TchError> {
        let kind = self.kind_after(properties);
        match kind == self.tensor.kind() {
            true => Ok(None),
            false => self.tensor.f_detach()?.f_to_kind(kind).map(Some),
        }
    }

    /// Takes `cast` for its values, in place, so that every handle on it stays valid.
    pub(crate) fn set(&self, cast: Option<Tensor>) -> Result<(), TchError> {
        drop(libtorch::take_grad(&self.tensor));
        match cast {
            Some(cast) => self.tensor.shallow_clone().f_set_data(&cast),
            None => Ok(()),
        }
    }

    /// Levels cast FP32 models.
    pub(super) fn check(&self) -> Result<(), BuildError> {
        let kind = self.tensor.f_kind()?;
        let floating = matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Double);
        match floating || (self.trainable() && kind != Kind::Float) {
            true => Err(BuildError::NotFloat { name: self.name.clone(), kind }),
            false => Ok(()),
        }
    }

    /// Marks the variable if it stays in FP32: as a part of batch norm where the level keeps that,
    /// or because it lies under one of the paths.
    pub(super) fn mark_fp32(&mut self, properties: &Properties, paths: &[String]) {
        let batch_norm = self.batch_norm && properties.keep_batchnorm_fp32 == Some(true);
        self.keep_fp32 = batch_norm || paths.iter().any(|path| is_under(&self.name, path));
    }
}

/// Whether a variable lies under a path: `head.weight` lies under `head`, `header.weight` does not.
pub(crate) fn is_under(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Lists each variable once: the trainable ones in the order of their creation, then the others by
/// name. A variable with several names, as tied weights have, goes by the first in the alphabet.
pub(super) fn list(store: &Mutex<Variables>, prefix: &str) -> Vec<Variable> {
    let variables = store.lock().unwrap_or_else(PoisonError::into_inner);
    let mut named: Vec<_> = variables.named_variables.iter().collect();
    named.sort_by_key(|(name, _)| *name);
    let batch_norms = batch_norm::names(&named);
    let mut buffers: Vec<Variable> = Vec::with_capacity(named.len());
    for (name, tensor) in named {
        let id = libtorch::tensor_id(tensor);
        let batch_norm = batch_norms.contains(name.as_str());
        let name = format!("{prefix}{name}");
        match buffers.iter_mut().find(|known| libtorch::tensor_id(&known.tensor) == id) {
            Some(known) => known.aliases.push(name),
            None => buffers.push(Variable {
                name,
                aliases: Vec::new(),
                tensor: tensor.shallow_clone(),
                group: None,
                batch_norm,
                keep_fp32: false,
            }),
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
