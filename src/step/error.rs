//! Why a step failed.

use tch::TchError;

use super::Overflow;
use crate::error::first_line;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Gradients are computed of scalars.
    #[error("the loss has shape {shape:?}: reduce it to a scalar, e.g. with `.mean(Kind::Float)`")]
    LossNotScalar {
        /// Its shape.
        shape: Vec<i64>,
    },
    /// The loss depends on no trainable variable.
    #[error(
        "the loss has no graph to go back through: it does not depend on a variable that requires \
         gradients, or was computed under `no_grad` or detached"
    )]
    LossWithoutGraph,
    /// The VarStore has variables that the optimizer does not know of.
    #[error(
        "{added} trainable variable(s) were added to the VarStore after `build`, and would never \
         be trained: create all layers before `build`"
    )]
    AddedVariables {
        /// How many.
        added: usize,
    },
    /// A limit that clips nothing sensible.
    #[error("`{method}` with {max}: the limit must not be negative or NaN")]
    ClipLimit {
        /// The method.
        method: &'static str,
        /// The limit.
        max: f64,
    },
    /// As many steps in a row were skipped as the loss scale's `skip_limit` allows.
    #[error(
        "{in_a_row} steps in a row were skipped: {overflow}; the data or the model makes \
         non-finite values at any loss scale, or the learning rate is too high"
    )]
    SkipLimit {
        /// How many.
        in_a_row: u64,
        /// The last one.
        overflow: Overflow,
    },
    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(#[from] TchError),
}
