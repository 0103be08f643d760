//! The levels written out in plain tch: casts, masters, scaling, unscaling, check, skip.

use std::collections::HashMap;

use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{ModuleT, VarStore},
};
use tch_amp::autocast;

use super::{LOSS_WEIGHT, LR, MOMENTUM, Training, WEIGHT_DECAY, net::ResNet};

/// What a level with its options comes to.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// The type of the weights: FP32, or 16 bits.
    pub weights: Kind,
    /// Whether batch norm stays in FP32.
    pub keep_norm: bool,
    /// Whether FP32 copies of the 16-bit weights are trained.
    pub masters: bool,
    /// The type of the autocast region around the forward pass.
    pub region: Option<Kind>,
    pub scale: Scale,
}

/// The loss scale with its rule.
#[derive(Debug, Clone, Copy)]
pub enum Scale {
    /// No scale, and no look at the gradients.
    Off,
    Static(f64),
    /// Apex's: halved on overflow, doubled after `window` good steps in a row.
    Dynamic {
        scale: f64,
        window: u32,
        max: f64,
    },
}

/// One weight with all that its update needs.
struct Param {
    weight: Tensor,
    /// What is trained in FP32: the weight itself, or its master.
    full: Option<Tensor>,
    momentum: Option<Tensor>,
}

pub fn train(recipe: Recipe, data: &[(Tensor, Tensor)]) -> Training {
    let (store, net) = ResNet::seeded();
    let mut params: Vec<_> = store.trainable_variables().into_iter().map(Param::new).collect();
    cast(&store, recipe);
    if !recipe.masters {
        params.iter_mut().for_each(|param| param.full = None);
    }
    let statistics: Vec<_> = store.variables().into_iter().filter(|(n, _)| running(n)).collect();
    let mut scale = recipe.scale;
    let mut good = 0;
    let mut training = Training::default();
    for (xs, digits) in data {
        let before: Vec<_> = statistics.iter().map(|(_, live)| live.copy()).collect();
        let loss = forward(&net, xs, recipe).cross_entropy_for_logits(digits) * LOSS_WEIGHT;
        training.losses.push(loss.double_value(&[]).to_bits());
        let factor = scale.value();
        let weights: Vec<_> = params.iter().map(|param| param.weight.shallow_clone()).collect();
        let grads = Tensor::run_backward(&[loss * factor], &weights, false, false);
        let _no_grad = tch::no_grad_guard();
        let grads: Vec<_> =
            grads.iter().map(|grad| grad.to_kind(Kind::Float) * (1.0 / factor)).collect();
        let skip = !matches!(scale, Scale::Off) && !grads.iter().all(finite);
        if skip {
            for ((_, live), before) in statistics.iter().zip(before) {
                live.shallow_clone().copy_(&before);
            }
        } else {
            params.iter_mut().zip(&grads).for_each(|(param, grad)| param.update(grad));
        }
        training.skipped.push(skip);
        scale.follow(skip, &mut good);
    }
    training.scale = scale.value();
    training.variables = crate::common::snapshot(store.variables());
    training
}

fn running(name: &str) -> bool {
    name.ends_with("running_mean") || name.ends_with("running_var")
}

fn cast(store: &VarStore, recipe: Recipe) {
    let variables: HashMap<String, Tensor> = store.variables();
    for (name, mut variable) in variables {
        if !(recipe.keep_norm && ResNet::is_norm(&name)) {
            variable.set_data(&variable.detach().to_kind(recipe.weights));
        }
    }
}

fn forward(net: &ResNet, xs: &Tensor, recipe: Recipe) -> Tensor {
    let xs = xs.to_kind(recipe.weights);
    let _region = recipe.region.map(|kind| match kind {
        Kind::Half => autocast::enter::<f16>(Device::Cpu).unwrap(),
        _ => autocast::enter::<bf16>(Device::Cpu).unwrap(),
    });
    net.forward_t(&xs, true).to_kind(Kind::Float)
}

fn finite(grad: &Tensor) -> bool {
    grad.isfinite().all().int64_value(&[]) == 1
}

impl Param {
    fn new(weight: Tensor) -> Self {
        Self { full: Some(weight.detach().copy()), weight, momentum: None }
    }

    /// `torch.optim.SGD`'s rule, each operation rounded for itself.
    fn update(&mut self, grad: &Tensor) {
        let full = match &self.full {
            Some(master) => master.shallow_clone(),
            None => self.weight.to_kind(Kind::Float),
        };
        let grad = grad + &full * WEIGHT_DECAY;
        let momentum = match &self.momentum {
            Some(momentum) => momentum * MOMENTUM + grad,
            None => grad,
        };
        let full = full - &momentum * LR;
        self.weight.copy_(&full);
        self.momentum = Some(momentum);
        self.full = self.full.take().map(|_| full);
    }
}

impl Scale {
    fn value(self) -> f64 {
        match self {
            Self::Off => 1.0,
            Self::Static(scale) | Self::Dynamic { scale, .. } => scale,
        }
    }

    fn follow(&mut self, skip: bool, good: &mut u32) {
        let Self::Dynamic { scale, window, max } = self else { return };
        *good = if skip { 0 } else { *good + 1 };
        if skip {
            *scale /= 2.0;
        } else if *good == *window {
            *scale = (*scale * 2.0).min(*max);
            *good = 0;
        }
    }
}
