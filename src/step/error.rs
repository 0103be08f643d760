//! Why a step failed.

use tch::TchError;

use super::Overflow;
use crate::{builder::BuildError, error::first_line};

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
    /// There is no step that the loss could feed: an empty array or `Vec`.
    #[error("the loss feeds no optimizer: join at least one step")]
    NoSteps,
    /// Optimizers of different builds have no loss scale in common.
    #[error(
        "the steps are of optimizers from different calls of `build`, which share no loss scale: \
         pass all models and optimizers to one `build`"
    )]
    OfDifferentBuilds,
    /// A variable that was added to a VarStore after `build` cannot be trained.
    #[error("a variable was added after `build`: {source}")]
    AddedLayer {
        /// Why.
        source: BuildError,
    },
    /// A gradient was asked for with respect to a tensor that the loss does not depend on.
    #[error("the loss does not depend on input {index} of `grad`")]
    UnusedInput {
        /// The position among the inputs.
        index: usize,
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
