//! Which of a build's variables an optimizer takes.

use crate::model::{Place, is_under};

/// Which of a build's variables an optimizer takes, those that are added later included.
#[derive(Debug, Clone)]
pub enum Selection {
    /// Those of all models.
    All,
    /// Those of the models at one position of the outermost tuple, array or `Vec`.
    Position(usize),
    /// Those of some models, by their numbers.
    Models(Vec<usize>),
    /// Those under some paths.
    Only(Vec<String>),
}

impl Selection {
    pub(crate) fn takes(&self, place: &Place, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Position(position) => place.position == *position,
            Self::Models(models) => models.contains(&place.index),
            Self::Only(paths) => paths.iter().any(|path| is_under(name, path)),
        }
    }
}
