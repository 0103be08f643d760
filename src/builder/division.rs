//! Which optimizer trains which variables.

use std::collections::HashMap;

use super::{
    BuildError,
    listing::{Listed, check_paths},
};
use crate::{
    model::{Link, Variable},
    optimizer::{Core, Engine, Param, Selection},
};

/// Who trains what.
pub(super) struct Division<'a> {
    models: &'a [Listed],
    /// Each variable with the number of its optimizer.
    taken: HashMap<&'a str, usize>,
    counts: [usize; 2],
    next: usize,
}

impl<'a> Division<'a> {
    /// `counts`: of models and of optimizers.
    pub(super) fn new(models: &'a [Listed], counts: [usize; 2]) -> Self {
        Self { models, taken: HashMap::new(), counts, next: 0 }
    }

    /// Gives an optimizer its parameters.
    pub(super) fn give(
        &mut self,
        engine: &mut dyn Engine,
        core: &mut Core,
    ) -> Result<(), BuildError> {
        let number = self.next;
        self.next += 1;
        core.number = number;
        let own = match self.counts {
            [models, optimizers] if models == optimizers && models > 1 => {
                Selection::Position(number)
            }
            _ => Selection::All,
        };
        let selection = engine.select(own, self.models)?;
        if let Selection::Only(paths) = &selection {
            check_paths("only", paths, self.models)?;
        }
        for Listed { model, variables } in self.models {
            let before = core.params.len();
            for variable in variables.iter().filter(|variable| variable.trainable()) {
                if selection.takes(model.place(), &variable.name) {
                    if let Some(first) = self.taken.insert(&variable.name, number) {
                        let (name, optimizers) = (variable.name.clone(), [first, number]);
                        return Err(BuildError::GivenTwice { name, optimizers });
                    }
                    core.params.extend(Param::new(variable, &core.properties)?);
                }
            }
            if core.params.len() > before {
                core.models.push(Link::new(model, number, selection.clone()));
            }
        }
        if core.params.is_empty() {
            return Err(BuildError::NoTrainableVariables { optimizer: number });
        }
        engine.check(&core.params)?;
        Ok(())
    }

    /// A variable that is to be trained and has no optimizer never would be.
    pub(super) fn check(&self) -> Result<(), BuildError> {
        let mut variables = self.models.iter().flat_map(|model| &model.variables);
        let untrained = |v: &&Variable| {
            v.trainable() && v.tensor.requires_grad() && !self.taken.contains_key(v.name.as_str())
        };
        match variables.find(untrained) {
            Some(variable) if self.next > 0 => {
                Err(BuildError::WithoutOptimizer { name: variable.name.clone() })
            }
            _ => Ok(()),
        }
    }
}
