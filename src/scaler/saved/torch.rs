//! The layout of torch's `GradScaler.state_dict()`.

use serde::{Deserialize, Serialize};

use super::{Entry, Layout, SavedScaler, SavedScalers, SavedSettings, StateError};

/// torch's `GradScaler.state_dict()`. Its settings must be the builder's; torch takes them over.
///
/// torch has one scaler for each loss that has a scale of its own: a slice of these is the state of
/// several losses. A disabled `GradScaler` saves `{}`, which serde refuses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchScaler {
    /// The scale.
    pub scale: f64,
    /// The factor that the scale grows by.
    pub growth_factor: f64,
    /// The factor that the scale backs off by.
    pub backoff_factor: f64,
    /// How many good steps in a row make the scale grow.
    pub growth_interval: u32,
    /// Good steps since the scale last changed or overflowed.
    #[serde(rename = "_growth_tracker")]
    pub growth_tracker: u64,
}

impl SavedScalers {
    /// The same in torch's layout, one for each loss, for `GradScaler.load_state_dict`. Limits and
    /// skip counters are lost.
    ///
    /// # Errors
    ///
    /// When a scale is static or has a hysteresis above 1, which torch cannot go on with.
    pub fn to_torch(&self) -> Result<Vec<TorchScaler>, StateError> {
        self.losses.iter().enumerate().map(to_torch).collect()
    }
}

fn to_torch((id, saved): (usize, &SavedScaler)) -> Result<TorchScaler, StateError> {
    let refused = |setting| StateError::NotOfTorch { key: format!("losses[{id}].{setting}") };
    match saved.settings {
        SavedSettings::Static => Err(refused("static")),
        SavedSettings::Dynamic { hysteresis: Some(2..), .. } => Err(refused("hysteresis")),
        SavedSettings::Dynamic { consecutive_hysteresis: Some(2..), .. } => {
            Err(refused("consecutive_hysteresis"))
        }
        SavedSettings::Dynamic { growth_factor, backoff_factor, growth_interval, .. } => {
            Ok(TorchScaler {
                scale: saved.scale,
                growth_factor,
                backoff_factor,
                growth_interval,
                growth_tracker: saved.unskipped,
            })
        }
    }
}

impl Layout for [TorchScaler] {
    fn entries(&self) -> Result<Vec<Entry>, StateError> {
        let entry = |(id, saved): (usize, &TorchScaler)| Entry {
            key: if self.len() > 1 { format!("[{id}].") } else { String::new() },
            scale_key: "scale",
            scale: saved.scale,
            unskipped: saved.growth_tracker,
            own: None,
            dynamic: Some(true),
            settings: vec![
                ("growth_factor", saved.growth_factor),
                ("backoff_factor", saved.backoff_factor),
                ("growth_interval", f64::from(saved.growth_interval)),
            ],
        };
        Ok(self.iter().enumerate().map(entry).collect())
    }
}

impl Layout for TorchScaler {
    fn entries(&self) -> Result<Vec<Entry>, StateError> {
        [*self].entries()
    }
}

impl Layout for Vec<TorchScaler> {
    fn entries(&self) -> Result<Vec<Entry>, StateError> {
        self.as_slice().entries()
    }
}
