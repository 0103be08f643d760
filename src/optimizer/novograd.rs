//! NovoGrad.

use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use super::{
    elementwise::{Groups, Settings},
    engine::{SettingError, ensure_beta, ensure_not_negative},
};
use crate::multi_tensor::{NormType, NovoGradRule, Update};

/// NovoGrad ([Ginsburg et al. 2019](https://arxiv.org/abs/1905.11286)): the rule of Apex's
/// `FusedNovoGrad`.
///
/// The gradient of each tensor is divided by a moving average of its norm, so that the second moment
/// is one number for each tensor.
///
/// Default: betas 0.9 and 0.999, eps 1e-8, no weight decay, bias correction, gradient averaging, the
/// L2 norm. Apex's default learning rate is 1e-3.
///
/// ```
/// use tch_amp::optim::NovoGrad;
/// let opt = NovoGrad::new(0.01).betas(0.95, 0.98).weight_decay(1e-3);
/// ```
#[derive(Debug)]
pub struct NovoGrad(pub(super) Groups<NovoGradSettings, 2>);

impl NovoGrad {
    /// The optimizer with learning rate `lr`.
    pub fn new(lr: f64) -> Self {
        Self(Groups::new(NovoGradSettings {
            lr,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            bias_correction: true,
            reg_inside_moment: false,
            grad_averaging: true,
            norm_type: NormType::L2,
            init_zero: false,
        }))
    }

    /// Sets the decay rates of the moment and of the norm, each in [0, 1).
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        self.with(|s| (s.beta1, s.beta2) = (beta1, beta2))
    }

    /// Sets the term that keeps the denominator away from zero.
    pub fn eps(self, eps: f64) -> Self {
        self.with(|s| s.eps = eps)
    }

    /// Sets the weight decay: part of the update, or of the moment as `reg_inside_moment` says.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.with(|s| s.weight_decay = weight_decay)
    }

    /// Turns the correction of moments that begin at zero on or off. As in Apex, that of the norm
    /// does not depend on `init_zero`.
    pub fn bias_correction(self, on: bool) -> Self {
        self.with(|s| s.bias_correction = on)
    }

    /// Lets normalized gradient and weight decay enter the moment, as the paper has it; else the
    /// gradient enters as it is, and the moment is normalized.
    pub fn reg_inside_moment(self, on: bool) -> Self {
        self.with(|s| s.reg_inside_moment = on)
    }

    /// Lets gradients enter the moment multiplied by `1 - beta1`, or whole.
    pub fn grad_averaging(self, on: bool) -> Self {
        self.with(|s| s.grad_averaging = on)
    }

    /// Sets the norm.
    pub fn norm_type(self, norm: NormType) -> Self {
        self.with(|s| s.norm_type = norm)
    }

    /// Lets the average of the norm begin at zero, or at the norm of the first gradient.
    pub fn init_zero(self, on: bool) -> Self {
        self.with(|s| s.init_zero = on)
    }
}

/// The settings of one param group of [`NovoGrad`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct NovoGradSettings {
    /// The learning rate.
    pub lr: f64,
    /// The decay rate of the moment, in [0, 1).
    pub beta1: f64,
    /// The decay rate of the norm, in [0, 1).
    pub beta2: f64,
    /// What keeps the denominator away from zero.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// Whether moments that begin at zero are corrected.
    pub bias_correction: bool,
    /// Whether normalized gradient and weight decay enter the moment.
    pub reg_inside_moment: bool,
    /// Whether gradients enter the moment multiplied by `1 - beta1`.
    pub grad_averaging: bool,
    /// The norm.
    pub norm_type: NormType,
    /// Whether the average of the norm begins at zero.
    pub init_zero: bool,
}

/// What a checkpoint saves of the settings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedNovoGrad {
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    bias_correction: bool,
    reg_inside_moment: bool,
    grad_averaging: bool,
    norm_type: NormType,
    init_zero: bool,
}

impl From<NovoGradSettings> for SavedNovoGrad {
    fn from(s: NovoGradSettings) -> Self {
        Self {
            lr: s.lr,
            betas: [s.beta1, s.beta2],
            eps: s.eps,
            weight_decay: s.weight_decay,
            bias_correction: s.bias_correction,
            reg_inside_moment: s.reg_inside_moment,
            grad_averaging: s.grad_averaging,
            norm_type: s.norm_type,
            init_zero: s.init_zero,
        }
    }
}

impl Settings<2> for NovoGradSettings {
    type Rule = NovoGradRule;
    type Saved = SavedNovoGrad;
    const STATE: [&'static str; 2] = ["exp_avg", "exp_avg_sq"];

    fn with(self, saved: SavedNovoGrad) -> Self {
        Self {
            lr: saved.lr,
            beta1: saved.betas[0],
            beta2: saved.betas[1],
            eps: saved.eps,
            weight_decay: saved.weight_decay,
            bias_correction: saved.bias_correction,
            reg_inside_moment: saved.reg_inside_moment,
            grad_averaging: saved.grad_averaging,
            norm_type: saved.norm_type,
            init_zero: saved.init_zero,
        }
    }

    fn check(&self) -> Result<(), SettingError> {
        ensure_not_negative("NovoGrad", "lr", self.lr)?;
        ensure_not_negative("NovoGrad", "eps", self.eps)?;
        ensure_not_negative("NovoGrad", "weight_decay", self.weight_decay)?;
        ensure_beta("NovoGrad", "beta1", self.beta1)?;
        ensure_beta("NovoGrad", "beta2", self.beta2)
    }

    fn lr_mut(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn rule(&self, step: u64) -> NovoGradRule {
        let correction = |beta: f64| match self.bias_correction {
            true => 1.0 - beta.powf(step as f64),
            false => 1.0,
        };
        let (l2, keep) = match self.reg_inside_moment {
            true => (self.weight_decay, 1.0),
            false => (0.0, 1.0 - self.lr * self.weight_decay),
        };
        let fresh = if self.grad_averaging { 1.0 - self.beta1 } else { 1.0 };
        NovoGradRule {
            norm: self.norm_type,
            first: step == 1 && !self.init_zero,
            beta1: self.beta1 as f32,
            fresh: fresh as f32,
            beta2: self.beta2,
            root_scale: (1.0 / correction(self.beta2).sqrt()) as f32,
            eps: self.eps as f32,
            inside: self.reg_inside_moment,
            l2: l2 as f32,
            keep: keep as f32,
            step_size: (self.lr / correction(self.beta1)) as f32,
        }
    }

    fn update(updates: &mut [Update<'_, NovoGradRule, 2>]) -> Result<(), TchError> {
        NovoGradRule::update(updates)
    }

    fn sizes(weight: &Tensor) -> [Vec<i64>; 2] {
        [weight.size(), Vec::new()]
    }
}
