//! What the crate's error types share.

use tch::TchError;

/// The first line of a libtorch error: the rest is a C++ backtrace.
pub(crate) fn first_line(error: &TchError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
