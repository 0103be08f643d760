//! Adam and AdamW.

use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use super::{
    elementwise::{Groups, Settings},
    engine::{SettingError, ensure_beta, ensure_not_negative},
};
use crate::multi_tensor::{
    self, ElementRule, Rule, Update,
    cuda::{self, DeviceSettings, RuleKernels},
};

macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $decay:ident, $default_decay:literal, $decay_doc:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(pub(super) Groups<AdamSettings, 2>);

        impl $name {
            /// The optimizer with learning rate `lr`.
            pub fn new(lr: f64) -> Self {
                Self(Groups::new(AdamSettings {
                    name: stringify!($name),
                    decay: Decay::$decay,
                    lr,
                    beta1: 0.9,
                    beta2: 0.999,
                    eps: 1e-8,
                    weight_decay: $default_decay,
                }))
            }

            /// Sets the decay rates of the two moments, each in [0, 1).
            pub fn betas(self, beta1: f64, beta2: f64) -> Self {
                self.with(|s| (s.beta1, s.beta2) = (beta1, beta2))
            }

            /// Sets the term that keeps the denominator away from zero. The moments are FP32, so
            /// that 1e-8 does not vanish.
            pub fn eps(self, eps: f64) -> Self {
                self.with(|s| s.eps = eps)
            }

            #[doc = $decay_doc]
            pub fn weight_decay(self, weight_decay: f64) -> Self {
                self.with(|s| s.weight_decay = weight_decay)
            }
        }
    };
}

adam! {
    /// Adam with L2 decay: the rule of `torch.optim.Adam`.
    ///
    /// Default: betas 0.9 and 0.999, eps 1e-8, no weight decay. There is no `amsgrad`; for that,
    /// build `tch::nn::Adam` on the VarStore and pass it instead.
    ///
    /// ```
    /// use tch_amp::optim::Adam;
    /// let opt = Adam::new(1e-3).betas(0.9, 0.99);
    /// ```
    Adam, L2, 0.0, "Sets the L2 penalty, added to the gradient."
}

adam! {
    /// Adam with decoupled decay: the rule of `torch.optim.AdamW`.
    ///
    /// Default: betas 0.9 and 0.999, eps 1e-8, weight decay 0.01. There is no `amsgrad`; for that,
    /// build `tch::nn::AdamW` on the VarStore and pass it instead.
    ///
    /// ```
    /// use tch_amp::optim::AdamW;
    /// let opt = AdamW::new(3e-4).weight_decay(0.1)
    ///     .group(1, |g| g.weight_decay(0.0)); // biases, put there with `Path::set_group(1)`
    /// ```
    AdamW, Decoupled, 0.01, "Sets the decay: each step multiplies the weights by `1 - lr · decay`."
}

/// Where weight decay acts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decay {
    L2,
    Decoupled,
}

/// The settings of one param group of [`Adam`] or [`AdamW`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamSettings {
    name: &'static str,
    decay: Decay,
    /// The learning rate.
    pub lr: f64,
    /// The decay rate of the first moment, in [0, 1).
    pub beta1: f64,
    /// The decay rate of the second moment, in [0, 1).
    pub beta2: f64,
    /// What keeps the denominator away from zero.
    pub eps: f64,
    /// The L2 penalty of `Adam`, the decay of `AdamW`.
    pub weight_decay: f64,
}

/// What a checkpoint saves of the settings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedAdam {
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
}

impl From<AdamSettings> for SavedAdam {
    fn from(settings: AdamSettings) -> Self {
        let AdamSettings { lr, beta1, beta2, eps, weight_decay, .. } = settings;
        Self { lr, betas: [beta1, beta2], eps, weight_decay }
    }
}

impl Settings<2> for AdamSettings {
    type Rule = AdamRule;
    type Saved = SavedAdam;
    const STATE: [&'static str; 2] = ["exp_avg", "exp_avg_sq"];

    fn with(self, saved: SavedAdam) -> Self {
        let SavedAdam { lr, betas: [beta1, beta2], eps, weight_decay } = saved;
        Self { lr, beta1, beta2, eps, weight_decay, ..self }
    }

    fn check(&self) -> Result<(), SettingError> {
        ensure_not_negative(self.name, "lr", self.lr)?;
        ensure_not_negative(self.name, "eps", self.eps)?;
        ensure_not_negative(self.name, "weight_decay", self.weight_decay)?;
        ensure_beta(self.name, "beta1", self.beta1)?;
        ensure_beta(self.name, "beta2", self.beta2)
    }

    fn lr_mut(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn rule(&self, step: u64) -> AdamRule {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        let (l2, keep) = match self.decay {
            Decay::L2 => (self.weight_decay, 1.0),
            Decay::Decoupled => (0.0, 1.0 - self.lr * self.weight_decay),
        };
        AdamRule {
            beta1: self.beta1 as f32,
            fresh1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            fresh2: (1.0 - self.beta2) as f32,
            eps: self.eps as f32,
            l2: l2 as f32,
            keep: keep as f32,
            step_size: (self.lr / correction(self.beta1)) as f32,
            root_scale: (1.0 / correction(self.beta2).sqrt()) as f32,
        }
    }

    fn on_gpu(&self) -> Option<(RuleKernels, DeviceSettings)> {
        let betas = [self.beta1, self.beta2];
        let settings = cuda::AdamSettings {
            lr: self.lr,
            beta: betas,
            eps: self.eps,
            weight_decay: self.weight_decay,
            decoupled: u32::from(self.decay == Decay::Decoupled),
            reserved: 0,
        };
        let rule = RuleKernels::Elementwise { source: &cuda::ADAM, prefix: "adam" };
        Some((rule, DeviceSettings::new(&settings, Some(betas))))
    }

    fn update(updates: &mut [Update<'_, AdamRule, 2>]) -> Result<(), TchError> {
        multi_tensor::update(updates)
    }
}

/// `m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; w = keep·w - step_size · m / (root_scale·√v + ε)`,
/// with `step_size = lr / (1-β₁ᵗ)` and `root_scale = 1 / √(1-β₂ᵗ)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdamRule {
    beta1: f32,
    fresh1: f32,
    beta2: f32,
    fresh2: f32,
    eps: f32,
    l2: f32,
    keep: f32,
    step_size: f32,
    root_scale: f32,
}

impl ElementRule<2> for AdamRule {
    #[inline(always)]
    fn element(&self, grad: f32, weight: f32, [m, v]: [f32; 2]) -> (f32, [f32; 2]) {
        let g = grad + self.l2 * weight;
        let m = self.beta1 * m + self.fresh1 * g;
        let v = self.beta2 * v + self.fresh2 * (g * g);
        let denominator = v.sqrt() * self.root_scale + self.eps;
        (self.keep * weight - self.step_size * (m / denominator), [m, v])
    }
}

impl Rule<2> for AdamRule {
    fn tensor(
        &self,
        grad: Tensor,
        weight: &Tensor,
        [m, v]: &mut [Tensor; 2],
    ) -> Result<Tensor, TchError> {
        let times = |tensor: &Tensor, factor: f32| tensor.f_mul_scalar(f64::from(factor));
        let g = grad.f_add(&times(weight, self.l2)?)?;
        let square = g.f_mul(&g)?;
        let _ = m.f_mul_scalar_(f64::from(self.beta1))?.f_add_(&times(&g, self.fresh1)?)?;
        let _ = v.f_mul_scalar_(f64::from(self.beta2))?.f_add_(&times(&square, self.fresh2)?)?;
        let denominator =
            times(&v.f_sqrt()?, self.root_scale)?.f_add_scalar(f64::from(self.eps))?;
        let direction = m.f_div(&denominator)?;
        times(weight, self.keep)?.f_sub(&times(&direction, self.step_size)?)
    }
}
