//! The state of the scales, to save with any serde format and to load again.

mod apex;
mod error;
mod torch;

use serde::{Deserialize, Serialize};

pub use apex::{ApexScaler, ApexScalers};
pub use error::StateError;
pub use torch::TorchScaler;

use super::{LossScale, Scaler, dynamic::Refill};

/// The version of [`SavedScalers`] that this crate writes.
const VERSION: u32 = 1;

/// The scales of all losses of one `build`: what
/// [`save_scalers`](crate::AmpOptimizer::save_scalers) returns.
///
/// Any serde format carries it. All floating-point numbers are finite.
///
/// ```
/// # use tch::{Device, nn::{self, VarStore}};
/// # use tch_amp::{Amp, O2, optim::Sgd};
/// # let store = VarStore::new(Device::Cpu);
/// # let net = nn::linear(store.root(), 2, 2, Default::default());
/// # let (_model, mut opt) = Amp::<O2>::builder().build((store, net), Sgd::new(0.1))?;
/// use tch_amp::scaler::SavedScalers;
/// let json = serde_json::to_string(&opt.save_scalers()?)?;
/// let saved: SavedScalers = serde_json::from_str(&json)?;
/// opt.load_scalers(&saved)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SavedScalers {
    /// The version of the layout: 1.
    pub version: u32,
    /// The scales, by loss id.
    pub losses: Vec<SavedScaler>,
}

/// The scale of one loss: see [`Scaler`] for the fields.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SavedScaler {
    /// See [`Scaler::scale`].
    pub scale: f64,
    /// See [`Scaler::unskipped`].
    pub unskipped: u64,
    /// How many overflows are left until one makes the scale back off.
    pub overflows_left: u32,
    /// See [`Scaler::skipped`].
    pub skipped: u64,
    /// See [`Scaler::skipped_in_a_row`].
    pub skipped_in_a_row: u64,
    /// See [`Scaler::stuck_in_a_row`].
    pub stuck_in_a_row: u64,
    /// The settings that decide how the scale goes on.
    pub settings: SavedSettings,
}

/// The settings of a saved scale. Loading compares them with the builder's and changes none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum SavedSettings {
    /// A scale that never changes.
    Static,
    /// A scale that follows the gradients.
    #[non_exhaustive]
    Dynamic {
        /// See [`Dynamic::growth_factor`](crate::Dynamic::growth_factor).
        growth_factor: f64,
        /// See [`Dynamic::backoff_factor`](crate::Dynamic::backoff_factor).
        backoff_factor: f64,
        /// See [`Dynamic::growth_interval`](crate::Dynamic::growth_interval).
        growth_interval: u32,
        /// See [`Dynamic::hysteresis`](crate::Dynamic::hysteresis); `None` where
        /// `consecutive_hysteresis` was set.
        hysteresis: Option<u32>,
        /// See [`Dynamic::consecutive_hysteresis`](crate::Dynamic::consecutive_hysteresis).
        consecutive_hysteresis: Option<u32>,
        /// See [`Dynamic::min_loss_scale`](crate::Dynamic::min_loss_scale).
        min_loss_scale: f64,
        /// See [`Dynamic::max_loss_scale`](crate::Dynamic::max_loss_scale).
        max_loss_scale: f64,
    },
}

/// A layout that [`load_scalers`](crate::AmpOptimizer::load_scalers) reads: [`SavedScalers`],
/// Apex's [`ApexScalers`], and torch's [`TorchScaler`], of which several losses have a slice.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no saved state of loss scales",
    label = "expected `SavedScalers`, `ApexScalers`, a `TorchScaler` or a slice of them"
)]
pub trait ScalerLayout: Layout {}
impl ScalerLayout for SavedScalers {}
impl ScalerLayout for ApexScalers {}
impl ScalerLayout for TorchScaler {}
impl ScalerLayout for [TorchScaler] {}
impl ScalerLayout for Vec<TorchScaler> {}

/// The crate's side of [`ScalerLayout`]; it cannot be named outside, which seals the trait.
pub trait Layout {
    /// The scales by loss id, as far as the layout tells.
    fn entries(&self) -> Result<Vec<Entry>, StateError>;
}

/// One scale as a layout has it.
#[derive(Debug)]
pub struct Entry {
    /// Where it stands in the layout: `losses[1].`
    key: String,
    /// What the layout calls the scale.
    scale_key: &'static str,
    scale: f64,
    unskipped: u64,
    /// All of it, in the crate's own layout.
    own: Option<SavedScaler>,
    /// Whether the scale is dynamic, where the layout tells.
    dynamic: Option<bool>,
    settings: Vec<Setting>,
}

/// A setting by name; of one that is absent the layout says nothing.
type Setting = (&'static str, f64);

impl SavedScalers {
    pub(crate) fn of(scalers: &[Scaler]) -> Self {
        Self { version: VERSION, losses: scalers.iter().map(SavedScaler::of).collect() }
    }
}

impl Layout for SavedScalers {
    fn entries(&self) -> Result<Vec<Entry>, StateError> {
        match self.version {
            VERSION => Ok(self.losses.iter().enumerate().map(SavedScaler::entry).collect()),
            version => Err(StateError::Version { version }),
        }
    }
}

impl SavedScaler {
    fn of(scaler: &Scaler) -> Self {
        Self {
            scale: scaler.scale,
            unskipped: scaler.unskipped,
            overflows_left: scaler.overflows_left,
            skipped: scaler.skipped,
            skipped_in_a_row: scaler.skipped_in_a_row,
            stuck_in_a_row: scaler.stuck_in_a_row,
            settings: SavedSettings::of(scaler.settings),
        }
    }

    fn entry((id, saved): (usize, &Self)) -> Entry {
        Entry {
            key: format!("losses[{id}]."),
            scale_key: "scale",
            scale: saved.scale,
            unskipped: saved.unskipped,
            own: Some(*saved),
            dynamic: Some(saved.settings != SavedSettings::Static),
            settings: saved.settings.named(),
        }
    }
}

impl SavedSettings {
    fn of(settings: LossScale) -> Self {
        let LossScale::Dynamic(d) = settings else { return Self::Static };
        let of_rule = |rule: Refill| (d.refill == rule).then_some(d.hysteresis);
        Self::Dynamic {
            growth_factor: d.growth_factor,
            backoff_factor: d.backoff_factor,
            growth_interval: d.growth_interval,
            hysteresis: of_rule(Refill::Growth),
            consecutive_hysteresis: of_rule(Refill::GoodStep),
            min_loss_scale: d.min,
            max_loss_scale: d.max,
        }
    }

    fn named(self) -> Vec<Setting> {
        match self {
            Self::Static => vec![],
            Self::Dynamic {
                growth_factor,
                backoff_factor,
                growth_interval,
                hysteresis,
                consecutive_hysteresis,
                min_loss_scale,
                max_loss_scale,
            } => vec![
                ("growth_factor", growth_factor),
                ("backoff_factor", backoff_factor),
                ("growth_interval", f64::from(growth_interval)),
                ("hysteresis", hysteresis.map_or(0.0, f64::from)),
                ("consecutive_hysteresis", consecutive_hysteresis.map_or(0.0, f64::from)),
                ("min_loss_scale", min_loss_scale),
                ("max_loss_scale", max_loss_scale),
            ],
        }
    }
}

/// The scalers after loading; those that the layout does not have stay as they are.
///
/// `partial` takes the losses that both sides have, otherwise the numbers must be equal.
pub(crate) fn restored(
    scalers: &[Scaler],
    layout: &(impl Layout + ?Sized),
    partial: bool,
) -> Result<Vec<Scaler>, StateError> {
    let entries = layout.entries()?;
    if !partial && entries.len() != scalers.len() {
        return Err(StateError::Losses { saved: entries.len(), here: scalers.len() });
    }
    let mut restored = scalers.to_vec();
    for (scaler, entry) in restored.iter_mut().zip(entries) {
        entry.restore(scaler)?;
    }
    Ok(restored)
}

impl Entry {
    fn restore(self, scaler: &mut Scaler) -> Result<(), StateError> {
        let Self { key, scale_key, scale, unskipped, own, dynamic, settings } = self;
        let fresh = Scaler::new(scaler.settings);
        let (min, max) = match scaler.settings {
            LossScale::Static(_) => (fresh.scale, fresh.scale),
            LossScale::Dynamic(d) => (d.min, d.max),
        };
        let name = |dynamic| if dynamic { "dynamic" } else { "static" };
        let here = matches!(scaler.settings, LossScale::Dynamic(_));
        if let Some(saved) = dynamic.filter(|saved| *saved != here) {
            let key = format!("{key}{scale_key}");
            return Err(StateError::Kind { key, saved: name(saved), here: name(here) });
        }
        let here = SavedSettings::of(scaler.settings).named();
        for (name, saved) in settings {
            let here = here.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, v)| *v);
            // Decimal formats may be off by the last bit of an f64.
            if saved as f32 != here as f32 {
                return Err(StateError::Setting { key: format!("{key}{name}"), saved, here });
            }
        }
        if !(min..=max).contains(&f64::from(scale as f32)) {
            return Err(StateError::Scale { key: format!("{key}{scale_key}"), scale, min, max });
        }
        let loaded = Scaler { scale: f64::from(scale as f32), unskipped, ..fresh };
        *scaler = match own {
            None => loaded,
            Some(own) if own.overflows_left > loaded.overflows_left => {
                let (key, most) = (format!("{key}overflows_left"), loaded.overflows_left);
                return Err(StateError::OverflowsLeft { key, value: own.overflows_left, most });
            }
            Some(own) => Scaler {
                overflows_left: own.overflows_left,
                skipped: own.skipped,
                skipped_in_a_row: own.skipped_in_a_row,
                stuck_in_a_row: own.stuck_in_a_row,
                ..loaded
            },
        };
        Ok(())
    }
}
