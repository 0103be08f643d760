//! Why a file cannot be written.

use std::{io, path::PathBuf};

use tch::{Kind, TchError};

use super::PartsError;
use crate::{config::DType, error::first_line, scaler::StateError};

/// Why a file cannot be written. But for [`RemoveOld`](Self::RemoveOld), what was at its path is as
/// before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// Models and optimizers are not those of one `build`.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// A step has not ended.
    #[error(transparent)]
    Scalers(#[from] StateError),
    /// The file system refuses.
    #[error("cannot write `{}`: {source}", .path.display())]
    Io {
        /// The file that was to be written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The user's value cannot be serialised.
    #[error("the value cannot be saved: {problem}")]
    Value {
        /// What its `Serialize` says.
        problem: String,
    },
    /// safetensors has no name for the type.
    #[error("variable `{name}` is {kind:?}, for which safetensors has no name")]
    Kind {
        /// The variable.
        name: String,
        /// Its type.
        kind: Kind,
    },
    /// Two tensors would have one name in the file.
    #[error("two tensors are named `{name}`: rename the variable")]
    Name {
        /// The name.
        name: String,
    },
    /// safetensors allows a header of 100 MB.
    #[error("the names and shapes of the tensors take {bytes} bytes, safetensors allows 100 MB")]
    Header {
        /// The size of the header.
        bytes: usize,
    },
    /// A finite weight would become infinite.
    #[error("`{name}` has values beyond the range of {dtype}: export in `bf16` or `f32`")]
    OutOfRange {
        /// The variable.
        name: String,
        /// The type that was asked for.
        dtype: DType,
    },
    /// The checkpoint is saved, but an older one cannot be removed.
    #[error("the checkpoint is saved, but `{}` cannot be removed: {source}", .path.display())]
    RemoveOld {
        /// The older file, or the folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(#[from] TchError),
}
