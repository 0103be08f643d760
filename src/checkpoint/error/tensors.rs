//! Tensors that do not fit.

/// A tensor that does not fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorProblem {
    /// The file lacks it.
    #[error("`{name}` is missing in the file")]
    Missing {
        /// The tensor.
        name: String,
    },
    /// There is no place for it here.
    #[error("`{name}` is in the file only")]
    Unexpected {
        /// The tensor.
        name: String,
    },
    /// The shapes differ.
    #[error("`{name}` has shape {saved:?} in the file, {here:?} here")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape in the file.
        saved: Vec<i64>,
        /// The shape here.
        here: Vec<i64>,
    },
    /// The types differ.
    #[error("`{name}` is {saved} in the file, and must be {here}")]
    DType {
        /// The tensor.
        name: String,
        /// The type in the file, as safetensors calls it.
        saved: String,
        /// The type that it must have.
        here: String,
    },
}
