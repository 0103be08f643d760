//! Lamb.

use serde::{Deserialize, Serialize};
use tch::TchError;

use super::{
    elementwise::{Groups, Settings},
    engine::{SettingError, ensure, ensure_beta, ensure_not_negative},
};
use crate::multi_tensor::{
    LambRule, Update,
    cuda::{self, DeviceSettings, RuleKernels},
};

/// Lamb ([You et al. 2019](https://arxiv.org/abs/1904.00962)): the rule of Apex's `FusedLAMB` and
/// `FusedMixedPrecisionLamb`.
///
/// Adam for large batches: its step in each tensor is `lr` times as long as the tensor's weights.
/// Gradients are clipped first, by the norm of all gradients of the optimizer.
///
/// Default: betas 0.9 and 0.999, eps 1e-6, decoupled weight decay 0.01, bias correction, gradient
/// averaging, gradients clipped to the norm 1. Apex's default learning rate is 1e-3.
///
/// ```
/// use tch_amp::optim::Lamb;
/// let opt = Lamb::new(2e-3).weight_decay(0.1)
///     .group(1, |g| g.weight_decay(0.0)); // biases, put there with `Path::set_group(1)`
/// ```
#[derive(Debug)]
pub struct Lamb(pub(super) Groups<LambSettings, 2>);

impl Lamb {
    /// The optimizer with learning rate `lr`.
    pub fn new(lr: f64) -> Self {
        Self(Groups::new(LambSettings {
            lr,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-6,
            weight_decay: 0.01,
            bias_correction: true,
            adam_w_mode: true,
            grad_averaging: true,
            max_grad_norm: Some(1.0),
            use_nvlamb: false,
        }))
    }

    /// Sets the decay rates of the two moments, each in [0, 1).
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        self.with(|s| (s.beta1, s.beta2) = (beta1, beta2))
    }

    /// Sets the term that keeps the denominator away from zero.
    pub fn eps(self, eps: f64) -> Self {
        self.with(|s| s.eps = eps)
    }

    /// Sets the weight decay: decoupled, or an L2 penalty as `adam_w_mode` says. Where it is zero,
    /// steps are Adam's, but for `use_nvlamb`.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.with(|s| s.weight_decay = weight_decay)
    }

    /// Turns the correction of moments that begin at zero on or off.
    pub fn bias_correction(self, on: bool) -> Self {
        self.with(|s| s.bias_correction = on)
    }

    /// Decouples the weight decay, or makes it an L2 penalty that is added to the clipped gradient.
    pub fn adam_w_mode(self, on: bool) -> Self {
        self.with(|s| s.adam_w_mode = on)
    }

    /// Lets gradients enter the first moment multiplied by `1 - beta1`, or whole.
    pub fn grad_averaging(self, on: bool) -> Self {
        self.with(|s| s.grad_averaging = on)
    }

    /// Sets the norm that gradients are clipped to, above 0, or `None`: not clipped. It is compared
    /// with the norm of all gradients of the optimizer, also where a group has a limit of its own;
    /// Apex ignores that.
    pub fn max_grad_norm(self, limit: impl Into<Option<f64>>) -> Self {
        self.with(|s| s.max_grad_norm = limit.into())
    }

    /// Scales the steps of parameters without weight decay too: NVIDIA's variant.
    pub fn use_nvlamb(self, on: bool) -> Self {
        self.with(|s| s.use_nvlamb = on)
    }
}

/// The settings of one param group of [`Lamb`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LambSettings {
    /// The learning rate.
    pub lr: f64,
    /// The decay rate of the first moment, in [0, 1).
    pub beta1: f64,
    /// The decay rate of the second moment, in [0, 1).
    pub beta2: f64,
    /// What keeps the denominator away from zero.
    pub eps: f64,
    /// The decoupled decay, or the L2 penalty.
    pub weight_decay: f64,
    /// Whether moments that begin at zero are corrected.
    pub bias_correction: bool,
    /// Whether weight decay is decoupled.
    pub adam_w_mode: bool,
    /// Whether gradients enter the first moment multiplied by `1 - beta1`.
    pub grad_averaging: bool,
    /// The norm that gradients are clipped to, above 0.
    pub max_grad_norm: Option<f64>,
    /// Whether steps are scaled where there is no weight decay.
    pub use_nvlamb: bool,
}

/// What a checkpoint saves of the settings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedLamb {
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    bias_correction: bool,
    adam_w_mode: bool,
    grad_averaging: bool,
    max_grad_norm: Option<f64>,
    use_nvlamb: bool,
}

impl From<LambSettings> for SavedLamb {
    fn from(s: LambSettings) -> Self {
        Self {
            lr: s.lr,
            betas: [s.beta1, s.beta2],
            eps: s.eps,
            weight_decay: s.weight_decay,
            bias_correction: s.bias_correction,
            adam_w_mode: s.adam_w_mode,
            grad_averaging: s.grad_averaging,
            max_grad_norm: s.max_grad_norm,
            use_nvlamb: s.use_nvlamb,
        }
    }
}

impl Settings<2> for LambSettings {
    type Rule = LambRule;
    type Saved = SavedLamb;
    const STATE: [&'static str; 2] = ["exp_avg", "exp_avg_sq"];

    fn with(self, saved: SavedLamb) -> Self {
        Self {
            lr: saved.lr,
            beta1: saved.betas[0],
            beta2: saved.betas[1],
            eps: saved.eps,
            weight_decay: saved.weight_decay,
            bias_correction: saved.bias_correction,
            adam_w_mode: saved.adam_w_mode,
            grad_averaging: saved.grad_averaging,
            max_grad_norm: saved.max_grad_norm,
            use_nvlamb: saved.use_nvlamb,
        }
    }

    fn check(&self) -> Result<(), SettingError> {
        ensure_not_negative("Lamb", "lr", self.lr)?;
        ensure_not_negative("Lamb", "eps", self.eps)?;
        ensure_not_negative("Lamb", "weight_decay", self.weight_decay)?;
        ensure_beta("Lamb", "beta1", self.beta1)?;
        ensure_beta("Lamb", "beta2", self.beta2)?;
        let limit = self.max_grad_norm.unwrap_or(1.0);
        let range = limit.is_finite() && limit > 0.0;
        ensure(range, "Lamb", "max_grad_norm", limit, "it must be finite and above 0, or `None`")
    }

    fn lr_mut(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn rule(&self, step: u64) -> LambRule {
        let correction = |beta: f64| match self.bias_correction {
            true => 1.0 - beta.powf(step as f64),
            false => 1.0,
        };
        let (l2, decay) = match self.adam_w_mode {
            true => (0.0, self.weight_decay),
            false => (self.weight_decay, 0.0),
        };
        let fresh1 = if self.grad_averaging { 1.0 - self.beta1 } else { 1.0 };
        LambRule {
            max_grad_norm: self.max_grad_norm,
            beta1: self.beta1 as f32,
            fresh1: fresh1 as f32,
            beta2: self.beta2 as f32,
            fresh2: (1.0 - self.beta2) as f32,
            unbias: (1.0 / correction(self.beta1)) as f32,
            root_scale: (1.0 / correction(self.beta2).sqrt()) as f32,
            eps: self.eps as f32,
            l2: l2 as f32,
            decay: decay as f32,
            lr: self.lr,
            trust: self.weight_decay != 0.0 || self.use_nvlamb,
        }
    }

    fn on_gpu(&self) -> Option<(RuleKernels, DeviceSettings)> {
        let betas = [self.beta1, self.beta2];
        let settings = cuda::LambSettings {
            lr: self.lr,
            beta: betas,
            fresh: if self.grad_averaging { 1.0 - self.beta1 } else { 1.0 },
            eps: self.eps,
            weight_decay: self.weight_decay,
            max_grad_norm: self.max_grad_norm.unwrap_or(f64::INFINITY),
            decoupled: u32::from(self.adam_w_mode),
            trust: u32::from(self.weight_decay != 0.0 || self.use_nvlamb),
        };
        let corrected = self.bias_correction.then_some(betas);
        Some((RuleKernels::Lamb, DeviceSettings::new(&settings, corrected)))
    }

    fn update(updates: &mut [Update<'_, LambRule, 2>]) -> Result<(), TchError> {
        LambRule::update(updates)
    }
}
