//! The layout of Apex's `amp.state_dict()`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Entry, Layout, SavedScalers, StateError};

/// Apex's `amp.state_dict()`: `{"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0}, …}`.
///
/// Losses are matched by the number in the key. Settings are not in it, and skips are not counted.
/// Apex's scale can reach 0, which is refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ApexScalers(pub BTreeMap<String, ApexScaler>);

/// One entry of [`ApexScalers`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApexScaler {
    /// The scale.
    pub loss_scale: f64,
    /// Good steps since the scale last changed or overflowed.
    pub unskipped: u64,
}

fn key(loss: usize) -> String {
    format!("loss_scaler{loss}")
}

impl SavedScalers {
    /// The same in Apex's layout, for `amp.load_state_dict`; settings and skip counters are lost.
    pub fn to_apex(&self) -> ApexScalers {
        let entry = |(id, saved): (usize, &super::SavedScaler)| {
            (key(id), ApexScaler { loss_scale: saved.scale, unskipped: saved.unskipped })
        };
        ApexScalers(self.losses.iter().enumerate().map(entry).collect())
    }
}

impl Layout for ApexScalers {
    fn entries(&self) -> Result<Vec<Entry>, StateError> {
        let losses = 0..self.0.len();
        if let Some(unknown) = self.0.keys().find(|name| !is_key(name)) {
            return Err(StateError::UnknownKey { key: unknown.clone() });
        }
        let entry = |loss| {
            let key = key(loss);
            let saved = self.0.get(&key).ok_or(StateError::MissingLoss { loss })?;
            Ok(Entry {
                key: format!("{key}."),
                scale_key: "loss_scale",
                scale: saved.loss_scale,
                unskipped: saved.unskipped,
                own: None,
                dynamic: None,
                settings: Vec::new(),
            })
        };
        losses.map(entry).collect()
    }
}

fn is_key(name: &str) -> bool {
    let number = name.strip_prefix("loss_scaler").and_then(|number| number.parse().ok());
    number.is_some_and(|loss| key(loss) == name)
}
