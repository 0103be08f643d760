//! Stochastic gradient descent.

use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use super::{
    elementwise::{Groups, Settings},
    engine::{SettingError, ensure, ensure_beta, ensure_not_negative},
};
use crate::multi_tensor::{
    self, ElementRule, Rule, Update,
    cuda::{self, DeviceSettings, RuleKernels},
};

/// Stochastic gradient descent with momentum: the rule of `torch.optim.SGD`.
///
/// Default: no momentum, no dampening, no weight decay.
///
/// ```
/// use tch_amp::optim::Sgd;
/// let opt = Sgd::new(0.1).momentum(0.9).nesterov(true).weight_decay(1e-4)
///     .group(1, |g| g.weight_decay(0.0)); // biases, put there with `Path::set_group(1)`
/// ```
#[derive(Debug)]
pub struct Sgd(pub(super) Groups<SgdSettings, 1>);

impl Sgd {
    /// Plain descent with learning rate `lr`.
    pub fn new(lr: f64) -> Self {
        Self(Groups::new(SgdSettings {
            lr,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
        }))
    }

    /// Sets the momentum, in [0, 1).
    pub fn momentum(self, momentum: f64) -> Self {
        self.with(|s| s.momentum = momentum)
    }

    /// Sets how much less than the whole gradient enters the momentum, in [0, 1].
    pub fn dampening(self, dampening: f64) -> Self {
        self.with(|s| s.dampening = dampening)
    }

    /// Sets the L2 penalty, added to the gradient.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.with(|s| s.weight_decay = weight_decay)
    }

    /// Turns Nesterov momentum on; it needs momentum and no dampening.
    pub fn nesterov(self, on: bool) -> Self {
        self.with(|s| s.nesterov = on)
    }
}

/// The settings of one param group of [`Sgd`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SgdSettings {
    /// The learning rate.
    pub lr: f64,
    /// The momentum, in [0, 1).
    pub momentum: f64,
    /// How much less than the whole gradient enters the momentum, in [0, 1].
    pub dampening: f64,
    /// The L2 penalty.
    pub weight_decay: f64,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
}

/// What a checkpoint saves of the settings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedSgd {
    lr: f64,
    momentum: f64,
    dampening: f64,
    weight_decay: f64,
    nesterov: bool,
}

impl From<SgdSettings> for SavedSgd {
    fn from(settings: SgdSettings) -> Self {
        let SgdSettings { lr, momentum, dampening, weight_decay, nesterov } = settings;
        Self { lr, momentum, dampening, weight_decay, nesterov }
    }
}

impl Settings<1> for SgdSettings {
    type Rule = SgdRule;
    type Saved = SavedSgd;
    const STATE: [&'static str; 1] = ["momentum_buffer"];

    fn with(self, saved: SavedSgd) -> Self {
        let SavedSgd { lr, momentum, dampening, weight_decay, nesterov } = saved;
        Self { lr, momentum, dampening, weight_decay, nesterov }
    }

    fn check(&self) -> Result<(), SettingError> {
        let Self { lr, momentum, dampening, weight_decay, nesterov } = *self;
        ensure_not_negative("Sgd", "lr", lr)?;
        ensure_not_negative("Sgd", "weight_decay", weight_decay)?;
        ensure_beta("Sgd", "momentum", momentum)?;
        let range = (0.0..=1.0).contains(&dampening);
        ensure(range, "Sgd", "dampening", dampening, "it must be between 0 and 1")?;
        let legal = !nesterov || (momentum > 0.0 && dampening == 0.0);
        ensure(legal, "Sgd", "nesterov", 1.0, "it needs momentum and no dampening")
    }

    fn lr_mut(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn rule(&self, step: u64) -> SgdRule {
        SgdRule {
            lr: self.lr as f32,
            momentum: self.momentum as f32,
            // The first gradient enters the momentum whole.
            fresh: if step == 1 { 1.0 } else { (1.0 - self.dampening) as f32 },
            weight_decay: self.weight_decay as f32,
            nesterov: self.nesterov,
        }
    }

    fn on_gpu(&self) -> Option<(RuleKernels, DeviceSettings)> {
        let settings = cuda::SgdSettings {
            lr: self.lr,
            momentum: self.momentum,
            dampening: self.dampening,
            weight_decay: self.weight_decay,
            nesterov: u32::from(self.nesterov),
            reserved: 0,
        };
        let rule = RuleKernels::Elementwise { source: &cuda::SGD, prefix: "sgd" };
        Some((rule, DeviceSettings::new(&settings, None)))
    }

    fn update(updates: &mut [Update<'_, SgdRule, 1>]) -> Result<(), TchError> {
        multi_tensor::update(updates)
    }
}

/// `b = momentum·b + fresh·g; w -= lr·b`, with `g += weight_decay·w` before.
#[derive(Debug, Clone, Copy)]
pub(super) struct SgdRule {
    lr: f32,
    momentum: f32,
    fresh: f32,
    weight_decay: f32,
    nesterov: bool,
}

impl ElementRule<1> for SgdRule {
    #[inline(always)]
    fn element(&self, grad: f32, weight: f32, [buffer]: [f32; 1]) -> (f32, [f32; 1]) {
        let g = grad + self.weight_decay * weight;
        if self.momentum == 0.0 {
            return (weight - self.lr * g, [buffer]);
        }
        let buffer = self.momentum * buffer + self.fresh * g;
        let direction = if self.nesterov { g + self.momentum * buffer } else { buffer };
        (weight - self.lr * direction, [buffer])
    }
}

impl Rule<1> for SgdRule {
    fn tensor(
        &self,
        grad: Tensor,
        weight: &Tensor,
        [buffer]: &mut [Tensor; 1],
    ) -> Result<Tensor, TchError> {
        let mut g = grad.f_add(&weight.f_mul_scalar(f64::from(self.weight_decay))?)?;
        if self.momentum != 0.0 {
            let fresh = g.f_mul_scalar(f64::from(self.fresh))?;
            let _ = buffer.f_mul_scalar_(f64::from(self.momentum))?.f_add_(&fresh)?;
            g = match self.nesterov {
                true => g.f_add(&buffer.f_mul_scalar(f64::from(self.momentum))?)?,
                false => buffer.shallow_clone(),
            };
        }
        weight.f_sub(&g.f_mul_scalar(f64::from(self.lr))?)
    }
}
