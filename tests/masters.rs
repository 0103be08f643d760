//! `O2` with masters, bit for bit against loops that keep FP32 masters by hand in plain tch.

mod common;

use common::{Net, batches, bits, mse};
use half::{bf16, f16};
use tch::{
    Kind, Tensor,
    nn::{self, ModuleT, OptimizerConfig},
};
use tch_amp::{
    Amp, LowPrecision, O2, Optimizer, Static,
    optim::{Adam, AdamW, Sgd},
};

const STEPS: usize = 50;
const SCALE: f64 = 1024.0;

/// A net with 16-bit weights (batch norm excepted) and FP32 masters, all in plain tch.
struct ByHand {
    _store: nn::VarStore,
    net: Net,
    weights: Vec<Tensor>,
    masters: Vec<Tensor>,
}

impl ByHand {
    fn new(kind: Kind) -> Self {
        let (store, net) = Net::seeded(11);
        let weights = store.trainable_variables();
        let masters = weights.iter().map(|w| w.detach().copy()).collect();
        for (name, variable) in store.variables() {
            if !name.starts_with("norm") {
                variable.shallow_clone().set_data(&variable.detach().to_kind(kind));
            }
        }
        Self { _store: store, net, weights, masters }
    }

    /// The unscaled FP32 gradients of one batch.
    fn gradients(&self, xs: &Tensor, ys: &Tensor, kind: Kind) -> Vec<Tensor> {
        let output = self.net.forward_t(&xs.to_kind(kind), true).to_kind(Kind::Float);
        let loss = mse(&output, ys) * SCALE;
        let grads = Tensor::run_backward(&[loss], &self.weights, false, false);
        grads.iter().map(|g| g.to_kind(Kind::Float) * (1.0 / SCALE)).collect()
    }

    fn write_back(&mut self) {
        let _guard = tch::no_grad_guard();
        for (weight, master) in self.weights.iter_mut().zip(&self.masters) {
            weight.copy_(master);
        }
    }
}

/// Trains at `O2` and compares masters and weights with the loop by hand after each step.
fn equals_by_hand<H: LowPrecision, O: Optimizer>(
    optimizer: impl FnOnce(&nn::VarStore) -> O,
    mut update: impl FnMut(&mut [Tensor], &[Tensor], usize),
) {
    let mut hand = ByHand::new(H::KIND);
    let (store, net) = Net::seeded(11);
    let optimizer = optimizer(&store);
    let builder = Amp::<O2<H>>::builder().loss_scale(Static::new(SCALE));
    let (model, mut opt) = builder.build((store, net), optimizer).unwrap();
    for (step, (xs, ys)) in batches(STEPS).iter().enumerate() {
        let loss = mse(&model.forward_t(xs, true), ys);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        let grads = hand.gradients(xs, ys, H::KIND);
        {
            let _guard = tch::no_grad_guard();
            update(&mut hand.masters, &grads, step + 1);
        }
        hand.write_back();
        let names: Vec<_> = opt.master_params().map(|(name, _)| name.to_owned()).collect();
        let masters = opt.master_params().map(|(_, master)| master);
        for ((name, actual), expected) in names.iter().zip(masters).zip(&hand.masters) {
            assert_eq!(bits(actual), bits(expected), "master {name} in step {step}");
        }
        for (name, expected) in names.iter().zip(&hand.weights) {
            let actual = &model.variables()[name];
            assert_eq!(actual.kind(), expected.kind(), "{name}");
            assert_eq!(bits(actual), bits(expected), "weight {name} in step {step}");
        }
    }
}

/// `torch.optim.SGD` with momentum, one rounding for each operation.
fn sgd(masters: &mut [Tensor], grads: &[Tensor], step: usize, buffers: &mut Vec<Tensor>) {
    for (i, (master, grad)) in masters.iter_mut().zip(grads).enumerate() {
        match step {
            1 => buffers.push(grad.copy()),
            _ => buffers[i] = &buffers[i] * 0.9 + grad,
        }
        *master -= &buffers[i] * 0.05;
    }
}

/// `torch.optim.AdamW`, one rounding for each operation.
fn adamw(masters: &mut [Tensor], grads: &[Tensor], step: usize, moments: &mut Vec<[Tensor; 2]>) {
    let (lr, b1, b2) = (1e-3, 0.9f64, 0.999f64);
    let power = step as f64;
    for (i, (master, grad)) in masters.iter_mut().zip(grads).enumerate() {
        if step == 1 {
            moments.push([grad.zeros_like(), grad.zeros_like()]);
        }
        let [m, v] = &mut moments[i];
        *m = &*m * b1 + grad * (1.0 - b1);
        *v = &*v * b2 + grad * grad * (1.0 - b2);
        // libtorch's FP32 root is off by a unit now and then; the FP64 one, rounded, is exact.
        let root = v.to_kind(Kind::Double).sqrt().to_kind(Kind::Float);
        let denominator = root * (1.0 / (1.0 - b2.powf(power)).sqrt()) + 1e-8;
        let direction = &*m / denominator;
        *master = &*master * (1.0 - lr * 0.01) - direction * (lr / (1.0 - b1.powf(power)));
    }
}

#[test]
fn sgd_in_f16_equals_masters_by_hand() {
    let mut buffers = Vec::new();
    let own = |_: &nn::VarStore| Sgd::new(0.05).momentum(0.9);
    equals_by_hand::<f16, _>(own, |m, g, step| sgd(m, g, step, &mut buffers));
}

#[test]
fn sgd_in_bf16_equals_masters_by_hand() {
    let mut buffers = Vec::new();
    let own = |_: &nn::VarStore| Sgd::new(0.05).momentum(0.9);
    equals_by_hand::<bf16, _>(own, |m, g, step| sgd(m, g, step, &mut buffers));
}

#[test]
fn adamw_in_f16_equals_masters_by_hand() {
    let mut moments = Vec::new();
    let own = |_: &nn::VarStore| AdamW::new(1e-3);
    equals_by_hand::<f16, _>(own, |m, g, step| adamw(m, g, step, &mut moments));
}

#[test]
fn adamw_in_bf16_equals_masters_by_hand() {
    let mut moments = Vec::new();
    let own = |_: &nn::VarStore| AdamW::new(1e-3);
    equals_by_hand::<bf16, _>(own, |m, g, step| adamw(m, g, step, &mut moments));
}

/// The master swap gives what a libtorch optimizer gives that was built on the masters.
#[test]
fn tch_adam_equals_an_optimizer_built_on_the_masters() {
    let mut reference = nn::Adam::default().build_copt(1e-3).unwrap();
    let mut params: Vec<Tensor> = Vec::new();
    let foreign = |store: &nn::VarStore| nn::Adam::default().build(store, 1e-3).unwrap();
    equals_by_hand::<bf16, _>(foreign, |masters, grads, step| {
        if step == 1 {
            params = masters.iter().map(|m| m.detach().set_requires_grad(true)).collect();
            for param in &params {
                reference.add_parameters(param, 0).unwrap();
            }
        }
        for (param, grad) in params.iter().zip(grads) {
            let mut current = param.grad();
            match current.defined() {
                true => current.copy_(grad),
                false => tch::with_grad(|| (param * grad).sum(Kind::Float).backward()),
            }
        }
        reference.step().unwrap();
    });
}

/// FP16 keeps 11 bits: adding 1e-4 to 1 vanishes without a master, and adds up with one.
#[test]
fn small_updates_add_up_in_the_master() {
    let (store, module) = common::weights(&[1.0]);
    let builder = Amp::<O2>::builder().loss_scale(Static::new(1.0));
    let (model, mut opt) = builder.build((store, module), Sgd::new(1e-4)).unwrap();
    for _ in 0..1000 {
        let loss = -model.inner().0.sum(Kind::Float);
        let _ = opt.backward_step(&loss).unwrap();
    }
    let master = opt.master_params().next().unwrap().1;
    assert!((common::values(master)[0] - 1.1).abs() < 1e-4);
    let rounded = f16::from_f32(common::values(master)[0]).to_f32();
    assert_eq!(common::values(&model.inner().0), [rounded]);
}

#[test]
fn a_frozen_weight_gets_its_master_once_it_is_trained() {
    let store = nn::VarStore::new(tch::Device::Cpu);
    let [a, b, c] = ["a", "b", "c"].map(|name| store.root().ones(name, &[2]));
    let b = b.set_requires_grad(false);
    let builder = Amp::<O2>::builder().loss_scale(Static::new(1.0));
    let (_model, mut opt) = builder.build((store, ()), Sgd::new(1.0)).unwrap();
    let loss = || (&a * 0.25 + &b + &c * 0.5).sum(Kind::Float);
    let _ = opt.backward_step(&loss()).unwrap();
    let now = || [&a, &b, &c].map(|t| common::values(t)[0]);
    assert_eq!(now(), [0.75, 1.0, 0.5]);
    let _ = b.set_requires_grad(true);
    let _ = opt.backward_step(&loss()).unwrap();
    assert_eq!(now(), [0.5, 0.0, 0.0]);
    assert!(opt.master_params().all(|(_, master)| master.kind() == Kind::Float));
}

#[test]
fn adam_moments_stay_fp32() {
    let (store, module) = common::weights(&[1.0]);
    let builder = Amp::<O2<bf16>>::builder();
    let (model, mut opt) = builder.build((store, module), Adam::new(1e-3)).unwrap();
    let _ = opt.backward_step(&model.inner().0.sum(Kind::Float)).unwrap();
    // One weight: a master and two moments of four bytes each.
    assert_eq!(opt.state_bytes(), 12);
    assert_eq!(model.weight_bytes(), 2);
}
