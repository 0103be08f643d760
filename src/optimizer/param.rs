//! One trainable variable and its FP32 master.

use tch::{Kind, TchError, Tensor};

use crate::{config::Properties, model::Variable};

/// A trainable variable as the optimizer sees it.
#[derive(Debug)]
pub struct Param {
    name: String,
    group: usize,
    /// The model's own weight: FP32, or 16 bits at a level that casts.
    weight: Tensor,
    master: Option<Tensor>,
}

impl Param {
    /// Makes the master of a weight that is about to be cast; a frozen weight gets its own once it
    /// has a gradient. `None` for a variable that is not trainable, such as a running mean.
    pub(crate) fn new(
        variable: &Variable,
        properties: &Properties,
    ) -> Result<Option<Self>, TchError> {
        let Variable { name, tensor, group, .. } = variable;
        let Some(group) = *group else { return Ok(None) };
        let needs_master = properties.keeps_masters()
            && variable.kind_after(properties) != tensor.kind()
            && tensor.requires_grad();
        let master = match needs_master {
            true => Some(tensor.f_detach()?.f_contiguous()?.f_alias_copy()?),
            false => None,
        };
        Ok(Some(Self { name: name.clone(), group, weight: tensor.shallow_clone(), master }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn group(&self) -> usize {
        self.group
    }

    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub(crate) fn master(&self) -> Option<&Tensor> {
        self.master.as_ref()
    }

    /// What the optimizer updates.
    pub(crate) fn full(&self) -> &Tensor {
        self.master.as_ref().unwrap_or(&self.weight)
    }

    /// What the optimizer updates, and the 16-bit weight to overwrite with it.
    pub(crate) fn full_and_copy(&mut self) -> (&mut Tensor, Option<&mut Tensor>) {
        match &mut self.master {
            Some(master) => (master, Some(&mut self.weight)),
            None => (&mut self.weight, None),
        }
    }

    /// Gives a 16-bit weight that was frozen at build its master.
    pub(crate) fn ensure_master(&mut self) -> Result<(), TchError> {
        if self.master.is_none() && self.weight.kind() != Kind::Float {
            self.master = Some(self.weight.f_detach()?.f_to_kind(Kind::Float)?);
        }
        Ok(())
    }
}
