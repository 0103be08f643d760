//! Adagrad.

use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use super::{
    elementwise::{Groups, Settings},
    engine::{SettingError, ensure_not_negative},
};
use crate::multi_tensor::{
    self, ElementRule, Rule, Update,
    cuda::{self, DeviceSettings, RuleKernels},
};

/// Adagrad ([Duchi et al. 2011](https://jmlr.org/papers/v12/duchi11a.html)): the rule of Apex's
/// `FusedAdagrad`, and of `torch.optim.Adagrad` without `lr_decay`.
///
/// Default: eps 1e-10, no weight decay. Apex's default learning rate is 1e-2.
///
/// ```
/// use tch_amp::optim::Adagrad;
/// let opt = Adagrad::new(1e-2).weight_decay(1e-4);
/// ```
#[derive(Debug)]
pub struct Adagrad(pub(super) Groups<AdagradSettings, 1>);

impl Adagrad {
    /// The optimizer with learning rate `lr`.
    pub fn new(lr: f64) -> Self {
        Self(Groups::new(AdagradSettings {
            lr,
            eps: 1e-10,
            weight_decay: 0.0,
            adagrad_w_mode: false,
        }))
    }

    /// Sets the term that keeps the denominator away from zero.
    pub fn eps(self, eps: f64) -> Self {
        self.with(|s| s.eps = eps)
    }

    /// Sets the weight decay: an L2 penalty, or decoupled as `adagrad_w_mode` says.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.with(|s| s.weight_decay = weight_decay)
    }

    /// Decouples the weight decay: each step multiplies the weights by `1 - lr · decay`.
    pub fn adagrad_w_mode(self, on: bool) -> Self {
        self.with(|s| s.adagrad_w_mode = on)
    }
}

/// The settings of one param group of [`Adagrad`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AdagradSettings {
    /// The learning rate.
    pub lr: f64,
    /// What keeps the denominator away from zero.
    pub eps: f64,
    /// The L2 penalty, or the decoupled decay.
    pub weight_decay: f64,
    /// Whether weight decay is decoupled.
    pub adagrad_w_mode: bool,
}

/// What a checkpoint saves of the settings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedAdagrad {
    lr: f64,
    eps: f64,
    weight_decay: f64,
    adagrad_w_mode: bool,
}

impl From<AdagradSettings> for SavedAdagrad {
    fn from(settings: AdagradSettings) -> Self {
        let AdagradSettings { lr, eps, weight_decay, adagrad_w_mode } = settings;
        Self { lr, eps, weight_decay, adagrad_w_mode }
    }
}

impl Settings<1> for AdagradSettings {
    type Rule = AdagradRule;
    type Saved = SavedAdagrad;
    const STATE: [&'static str; 1] = ["sum"];

    fn with(self, saved: SavedAdagrad) -> Self {
        let SavedAdagrad { lr, eps, weight_decay, adagrad_w_mode } = saved;
        Self { lr, eps, weight_decay, adagrad_w_mode }
    }

    fn check(&self) -> Result<(), SettingError> {
        ensure_not_negative("Adagrad", "lr", self.lr)?;
        ensure_not_negative("Adagrad", "eps", self.eps)?;
        ensure_not_negative("Adagrad", "weight_decay", self.weight_decay)
    }

    fn lr_mut(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn rule(&self, _: u64) -> AdagradRule {
        let (l2, keep) = match self.adagrad_w_mode {
            false => (self.weight_decay, 1.0),
            true => (0.0, 1.0 - self.lr * self.weight_decay),
        };
        AdagradRule { lr: self.lr as f32, eps: self.eps as f32, l2: l2 as f32, keep: keep as f32 }
    }

    fn on_gpu(&self) -> Option<(RuleKernels, DeviceSettings)> {
        let settings = cuda::AdagradSettings {
            lr: self.lr,
            eps: self.eps,
            weight_decay: self.weight_decay,
            decoupled: u32::from(self.adagrad_w_mode),
            reserved: 0,
        };
        let rule = RuleKernels::Elementwise { source: &cuda::ADAGRAD, prefix: "adagrad" };
        Some((rule, DeviceSettings::new(&settings, None)))
    }

    fn update(updates: &mut [Update<'_, AdagradRule, 1>]) -> Result<(), TchError> {
        multi_tensor::update(updates)
    }
}

/// `s += g²; w = keep·w - lr · g / (√s + ε)`, with `g += l2·w` before.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdagradRule {
    lr: f32,
    eps: f32,
    l2: f32,
    keep: f32,
}

impl ElementRule<1> for AdagradRule {
    #[inline(always)]
    fn element(&self, grad: f32, weight: f32, [sum]: [f32; 1]) -> (f32, [f32; 1]) {
        let g = grad + self.l2 * weight;
        let sum = sum + g * g;
        (self.keep * weight - self.lr * (g / (sum.sqrt() + self.eps)), [sum])
    }
}

impl Rule<1> for AdagradRule {
    fn tensor(
        &self,
        grad: Tensor,
        weight: &Tensor,
        [sum]: &mut [Tensor; 1],
    ) -> Result<Tensor, TchError> {
        let times = |tensor: &Tensor, factor: f32| tensor.f_mul_scalar(f64::from(factor));
        let g = grad.f_add(&times(weight, self.l2)?)?;
        let _ = sum.f_add_(&g.f_mul(&g)?)?;
        let direction = g.f_div(&sum.f_sqrt()?.f_add_scalar(f64::from(self.eps))?)?;
        times(weight, self.keep)?.f_sub(&times(&direction, self.lr)?)
    }
}
