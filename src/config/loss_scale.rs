//! The loss scale of a config: its kind, and the keys that belong to a dynamic one.

use std::num::NonZeroU32;

use super::{AmpConfig, LossScaleConfig, OptionError};
use crate::scaler::{Dynamic, LossScale, ScaleError, Static};

impl AmpConfig {
    pub(super) fn resolve_loss_scale(&self, default: LossScale) -> Result<LossScale, OptionError> {
        let scale = match self.loss_scale {
            None => default,
            Some(LossScaleConfig::Dynamic) => LossScale::DYNAMIC,
            Some(LossScaleConfig::Static(scale)) => Static::try_from(scale)?.into(),
        };
        let limit = self.skip_limit.map(skip_limit).transpose()?;
        match scale {
            LossScale::Dynamic(d) => {
                let d = self.resolve_dynamic(d)?;
                Ok(limit.map_or(d, |limit| d.skip_limit(limit)).into())
            }
            LossScale::Static(s) => {
                self.refuse_keys_of_dynamic()?;
                Ok(limit.map_or(s, |limit| s.skip_limit(limit)).into())
            }
        }
    }

    fn resolve_dynamic(&self, mut d: Dynamic) -> Result<Dynamic, OptionError> {
        if let Some(scale) = self.init_scale {
            d = d.try_init_scale(scale)?;
        }
        if let Some(factor) = self.growth_factor {
            d = d.try_growth_factor(factor)?;
        }
        if let Some(factor) = self.backoff_factor {
            d = d.try_backoff_factor(factor)?;
        }
        if let Some(steps) = self.growth_interval {
            d = d.try_growth_interval(steps)?;
        }
        d = match (self.hysteresis, self.consecutive_hysteresis) {
            (None, None) => d,
            (Some(overflows), None) => d.try_hysteresis(overflows)?,
            (None, Some(overflows)) => d.try_consecutive_hysteresis(overflows)?,
            (Some(_), Some(_)) => return Err(OptionError::TwoHystereses),
        };
        Ok(d.try_limits(self.min_loss_scale, self.max_loss_scale)?)
    }

    fn refuse_keys_of_dynamic(&self) -> Result<(), OptionError> {
        if self.min_loss_scale.is_some() || self.max_loss_scale.is_some() {
            return Err(OptionError::LimitsOfDynamic);
        }
        let keys = [
            ("init_scale", self.init_scale.is_some()),
            ("growth_factor", self.growth_factor.is_some()),
            ("backoff_factor", self.backoff_factor.is_some()),
            ("growth_interval", self.growth_interval.is_some()),
            ("hysteresis", self.hysteresis.is_some()),
            ("consecutive_hysteresis", self.consecutive_hysteresis.is_some()),
        ];
        match keys.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(OptionError::OfDynamic { option }),
            None => Ok(()),
        }
    }
}

fn skip_limit(limit: u32) -> Result<NonZeroU32, ScaleError> {
    let zero = ScaleError::Setting { setting: "skip_limit", value: 0.0, must: "be at least 1" };
    NonZeroU32::new(limit).ok_or(zero)
}
