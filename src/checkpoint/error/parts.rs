//! Models and optimizers that make no checkpoint.

use crate::builder::BuildError;

/// Models and optimizers that make no checkpoint: it takes all of one `build`, each once.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartsError {
    /// An empty `Vec` or array.
    #[error("a checkpoint takes at least one model")]
    NoModels,
    /// The optimizers train a model that is not there.
    #[error("model {model} of the `build` is missing: pass all models that the optimizers train")]
    MissingModel {
        /// Its number among the models of the `build`.
        model: usize,
    },
    /// A model is trained by an optimizer that is not there.
    #[error(
        "optimizer {optimizer} of the `build` is missing: it trains model {model}; pass all \
         optimizers"
    )]
    MissingOptimizer {
        /// The model's number among the models of the `build`.
        model: usize,
        /// The optimizer's number among the optimizers of the `build`.
        optimizer: usize,
    },
    /// Each has its place in a checkpoint once.
    #[error("a model or optimizer is passed twice")]
    Twice,
    /// A checkpoint is of one `build`.
    #[error("the models and optimizers are of different calls of `build`: save one file for each")]
    OtherBuild,
    /// A variable that was added to a VarStore after `build` cannot be taken up.
    #[error("a variable was added after `build`: {source}")]
    AddedLayer {
        /// Why.
        #[from]
        source: BuildError,
    },
}
