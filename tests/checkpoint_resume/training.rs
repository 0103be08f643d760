//! The training that is interrupted: all that a step depends on changes on both sides of the
//! interruption.

use serde::{Deserialize, Serialize};
use tch::{
    Device, Tensor,
    nn::{self, ModuleT, VarStore},
};
use tch_amp::{
    AmpBuilder, AmpModel, AmpOptimizer, Checkpoint, Dynamic, OptLevel, StepOutcome,
    builder::state::State,
    checkpoint::{CheckpointModels, CheckpointOptimizers, WithState, WithoutState},
    joint,
    optim::{AdamW, Sgd},
    option::{self, Unset},
};
use typenum::{U0, U1, U2, U3};

use crate::common::{bits, mse, noise};

/// Steps of the whole training.
pub const STEPS: usize = 12;
/// Steps before it is interrupted.
pub const BEFORE: usize = 7;
/// Steps in which loss 0 overflows, which feeds AdamW alone.
pub const OVERFLOWS_OF_0: [usize; 2] = [4, 10];
/// Steps in which loss 2 overflows, which feeds both optimizers.
pub const OVERFLOWS_OF_2: [usize; 2] = [6, 8];

pub const FIRST_SCALE: f64 = 64.0;
const SCALE: Dynamic = Dynamic::new().init_scale(FIRST_SCALE).growth_interval(3).hysteresis(2);

const INPUTS: i64 = 6;
const OUTPUTS: i64 = 3;

/// Linear, batch norm, dropout, linear.
#[derive(Debug)]
struct Net {
    first: nn::Linear,
    norm: nn::BatchNorm,
    last: nn::Linear,
}

impl Net {
    /// The net with random weights; those of batch norm are in param group 1.
    fn random() -> (VarStore, Self) {
        let store = VarStore::new(Device::Cpu);
        let root = store.root();
        let no_bias = nn::LinearConfig { bias: false, ..Default::default() };
        let net = Self {
            first: nn::linear(&root / "first", INPUTS, 8, no_bias),
            norm: nn::batch_norm1d(root.sub("norm").set_group(1), 8, Default::default()),
            last: nn::linear(&root / "last", 8, OUTPUTS, Default::default()),
        };
        (store, net)
    }
}

impl ModuleT for Net {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let hidden = xs.apply(&self.first).apply_t(&self.norm, train).tanh();
        hidden.dropout(0.3, train).apply(&self.last)
    }
}

/// Where a training is: what a user saves with it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Position {
    pub step: usize,
    /// Batches that were read.
    pub batches: u64,
    /// The smallest sum of a step's losses.
    pub best: f64,
}

impl Position {
    pub const START: Self = Self { step: 0, batches: 0, best: f64::INFINITY };
}

/// Two models of one kind; AdamW trains the first and a part of the second, Sgd the rest.
#[derive(Debug)]
pub struct Training<L: OptLevel> {
    a: AmpModel<L, Net>,
    b: AmpModel<L, Net>,
    adam: AmpOptimizer<L, AdamW, U3>,
    sgd: AmpOptimizer<L, Sgd, U3>,
}

impl<L: OptLevel> Training<L> {
    pub fn new<S: State>(builder: AmpBuilder<L, S>) -> Self
    where
        S::LossScale: Unset<option::loss_scale>,
        S::NumLosses: Unset<option::num_losses>,
    {
        let adam = AdamW::new(1e-2).group(1, |group| group.weight_decay(0.0).betas(0.8, 0.99));
        let sgd = Sgd::new(0.1).momentum(0.9).group(1, |group| group.dampening(0.25));
        let optimizers = (adam.only(["0", "1.first"]), sgd.only(["1.norm", "1.last"]));
        let builder = builder.loss_scale(SCALE).num_losses::<U3>();
        let ((a, b), (adam, sgd)) =
            builder.build((Net::random(), Net::random()), optimizers).unwrap();
        Self { a, b, adam, sgd }
    }

    pub fn checkpoint(
        &mut self,
    ) -> Checkpoint<
        'static,
        impl CheckpointModels + '_,
        impl CheckpointOptimizers<WithState> + CheckpointOptimizers<WithoutState> + '_,
    > {
        Checkpoint::new((&self.a, &self.b), (&mut self.adam, &mut self.sgd))
    }

    /// One step; returns the outcomes for both optimizers.
    pub fn step(&mut self, position: &mut Position) -> [StepOutcome; 2] {
        let n = position.step;
        self.change_settings(n);
        let (mut adam, mut sgd) = (self.adam.begin(), self.sgd.begin());
        let mut sum = 0.0;
        for micro_batch in 0..2 {
            let (xs, ys) = batch(position);
            if micro_batch == 0 && OVERFLOWS_OF_0.contains(&n) {
                let _ = xs.get(2).fill_(f64::INFINITY);
            }
            let loss = mse(&self.a.forward_t(&xs, true), &ys) / 2.0;
            sum += loss.double_value(&[]);
            adam.backward_of::<U0>(&loss).unwrap();
        }
        let (xs, ys) = batch(position);
        let of_b = mse(&self.b.forward_t(&xs, true), &ys);
        sgd.backward_of::<U1>(&of_b).unwrap();
        let (xs, ys) = batch(position);
        let both = self.a.forward_t(&xs, true) + self.b.forward_t(&xs, true);
        let factor = if OVERFLOWS_OF_2.contains(&n) { f64::INFINITY } else { 1.0 };
        let of_both = mse(&both, &ys) * factor;
        joint((&mut adam, &mut sgd)).backward_of::<U2>(&of_both).unwrap();
        sum += of_b.double_value(&[]) + of_both.double_value(&[]);
        position.best = position.best.min(sum);
        position.step += 1;
        let mut adam = adam.unscale().unwrap();
        adam.clip_grad_norm(0.5).unwrap();
        let sgd = sgd.unscale().unwrap();
        [adam.step().unwrap(), sgd.step().unwrap()]
    }

    /// What the builder of a new process knows nothing of.
    fn change_settings(&mut self, step: usize) {
        match step {
            2 => self.sgd.set_lr(0.05).unwrap(),
            3 => self.adam.set_lr_group(1, 0.1 + 0.2).unwrap(),
            5 => self.sgd.update_settings(0, |group| group.momentum = 1.0 / 3.0).unwrap(),
            _ => {}
        }
    }

    pub fn scalers(&self) -> Vec<tch_amp::Scaler> {
        self.sgd.scalers()
    }

    /// What can be seen of the tensors: variables in their own types, and masters.
    pub fn tensors(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for (number, model) in [&self.a, &self.b].into_iter().enumerate() {
            for (name, tensor) in model.variables() {
                let digest = format!("{:?}, {:?}", tensor.kind(), bits(&tensor));
                all.push((format!("variable `{number}.{name}`"), digest));
            }
        }
        for (name, tensor) in self.adam.master_params().chain(self.sgd.master_params()) {
            let digest = format!("{:?}, {:?}", tensor.kind(), bits(tensor));
            all.push((format!("master `{name}`"), digest));
        }
        all
    }
}

/// The next batch of an endless supply.
fn batch(position: &mut Position) -> (Tensor, Tensor) {
    let seed = 2 * position.batches;
    position.batches += 1;
    (noise(seed, &[5, INPUTS]), noise(seed + 1, &[5, OUTPUTS]))
}
