//! Several models, optimizers and losses: the four scenarios of Apex's
//! test_multiple_models_optimizers_losses, at every level, with its numbers.

use std::array;

use tch::{
    Device, Kind, Tensor,
    nn::{Module, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Dynamic, O0, O1, O2, O3, OptLevel, StepOutcome, bf16, f16, joint,
    loss::{LossCount, LossId},
    optim::Sgd,
    option::AllowsKeepFp32,
};
use typenum::{U0, U1, U2};

mod common;
use common::values;

/// `loss = Σ x·w0·w1`, with `w0 = [u, u + 1]`, `w1 = [u + 1, u + 2]` and `x = [1, 1]`.
#[derive(Debug)]
struct Product {
    w0: Tensor,
    w1: Tensor,
}

impl Product {
    fn new(model: usize) -> (VarStore, Self) {
        let store = VarStore::new(Device::Cpu);
        let path = store.root().set_group(model);
        let [w0, w1] = start(model).map(|values| Tensor::from_slice(&values));
        let product = Self { w0: path.var_copy("w0", &w0), w1: path.var_copy("w1", &w1) };
        (store, product)
    }
}

impl Module for Product {
    fn forward(&self, xs: &Tensor) -> Tensor {
        (xs * &self.w0 * &self.w1).sum(Kind::Float)
    }
}

fn start(model: usize) -> [[f32; 2]; 2] {
    let u = model as f32 + 1.0;
    [[u, u + 1.0], [u + 1.0, u + 2.0]]
}

/// Who trains what, and which loss is computed of what.
struct Scenario {
    /// For each model: its optimizer and its learning rate.
    models: &'static [(usize, f64)],
    momenta: &'static [f64],
    /// For each loss: its models, and the optimizers that it feeds.
    losses: [(&'static [usize], &'static [usize]); 2],
}

const SCENARIOS: [Scenario; 4] = [
    // 2 models, 2 losses, 1 optimizer.
    Scenario {
        models: &[(0, 0.25), (0, 0.5)],
        momenta: &[0.125],
        losses: [(&[0], &[0]), (&[1], &[0])],
    },
    // 3 models, 2 losses, 1 optimizer: model 2 is in both losses.
    Scenario {
        models: &[(0, 0.25), (0, 0.5), (0, 0.125)],
        momenta: &[0.125],
        losses: [(&[0, 2], &[0]), (&[1, 2], &[0])],
    },
    // 2 models, 2 losses, 2 optimizers.
    Scenario {
        models: &[(0, 0.25), (1, 0.5)],
        momenta: &[0.125, 0.25],
        losses: [(&[0], &[0]), (&[1], &[1])],
    },
    // 3 models, 2 losses, 2 optimizers: loss 1 feeds both.
    Scenario {
        models: &[(0, 0.25), (0, 1.0), (1, 0.5)],
        momenta: &[0.125, 0.25],
        losses: [(&[0, 1], &[0]), (&[1, 2], &[0, 1])],
    },
];

/// An infinity in the gradient of one weight, from one loss in one iteration.
#[derive(Debug, Clone, Copy)]
struct Injection {
    iteration: usize,
    loss: usize,
    model: usize,
    weight: usize,
}

impl Scenario {
    fn injections(&self) -> Vec<Option<Injection>> {
        let mut all = vec![None];
        for iteration in [0, 1] {
            for (loss, (models, _)) in self.losses.iter().enumerate() {
                for (&model, weight) in models.iter().flat_map(|m| [(m, 0), (m, 1)]) {
                    all.push(Some(Injection { iteration, loss, model, weight }));
                }
            }
        }
        all
    }

    fn optimizers(&self) -> Vec<Sgd> {
        let optimizer = |(number, &momentum): (usize, &f64)| {
            let own = || (0..).zip(self.models).filter(move |(_, (opt, _))| *opt == number);
            let sgd = Sgd::new(0.5).momentum(momentum);
            let sgd = own().fold(sgd, |sgd, (model, &(_, lr))| {
                sgd.group(model, |_| Sgd::new(lr).momentum(momentum))
            });
            sgd.only(own().map(|(model, _)| model.to_string()))
        };
        self.momenta.iter().enumerate().map(optimizer).collect()
    }
}

/// Plain FP32 training with rounded weights: the oracle.
struct Reference {
    masters: Vec<[[f32; 2]; 2]>,
    buffers: Vec<[[f32; 2]; 2]>,
}

impl Reference {
    fn new(models: usize) -> Self {
        Self { masters: (0..models).map(start).collect(), buffers: vec![[[0.0; 2]; 2]; models] }
    }

    /// The gradients of all losses, in which each model's occur as often as the model does.
    fn grads(&self, scenario: &Scenario, round: &dyn Fn(usize, f32) -> f32) -> Vec<[[f32; 2]; 2]> {
        let grad = |model: usize| {
            let times = scenario.losses.iter().filter(|(m, _)| m.contains(&model)).count() as f32;
            let [w0, w1] = self.weights(model, round);
            [w1.map(|w| times * w), w0.map(|w| times * w)]
        };
        (0..self.masters.len()).map(grad).collect()
    }

    fn weights(&self, model: usize, round: &dyn Fn(usize, f32) -> f32) -> [[f32; 2]; 2] {
        array::from_fn(|weight| self.masters[model][weight].map(|w| round(weight, w)))
    }

    fn step(&mut self, model: usize, grads: [[f32; 2]; 2], (lr, momentum): (f64, f64)) {
        for weight in [0, 1] {
            for i in [0, 1] {
                let buffer = &mut self.buffers[model][weight][i];
                *buffer = momentum as f32 * *buffer + grads[weight][i];
                self.masters[model][weight][i] -= lr as f32 * *buffer;
            }
        }
    }
}

/// How a level rounds the weights, and whether it steps on masters.
struct Rounding {
    weight: &'static dyn Fn(usize, f32) -> f32,
    masters: bool,
}

type Models<L> = Vec<AmpModel<L, Product>>;
type Opts<L, N> = Vec<AmpOptimizer<L, Sgd, N>>;

/// Runs all scenarios with all injections. `build` is given the number of models.
fn run<L: OptLevel, N: LossCount, I0: LossId<N>, I1: LossId<N>>(
    rounding: &Rounding,
    build: impl Fn(Vec<(VarStore, Product)>, Vec<Sgd>) -> (Models<L>, Opts<L, N>),
) {
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        for injection in scenario.injections() {
            let what = format!("{} scenario {number}, {injection:?}", L::NAME);
            let models = (0..scenario.models.len()).map(Product::new).collect();
            let (models, mut opts) = build(models, scenario.optimizers());
            if N::USIZE == 2 {
                lower_first_scale::<L, N, I0>(&models, &mut opts);
            }
            let mut reference = Reference::new(models.len());
            for iteration in 0..if injection.is_some() { 3 } else { 2 } {
                let now = injection.filter(|injection| injection.iteration == iteration);
                let expected = reference.grads(scenario, rounding.weight);
                let mut steps: Vec<_> = opts.iter_mut().map(AmpOptimizer::begin).collect();
                for (loss, (of, feeds)) in scenario.losses.iter().enumerate() {
                    let sum = sum(&models, of, now.filter(|injection| injection.loss == loss));
                    let fed = steps.iter_mut().enumerate().filter(|(n, _)| feeds.contains(n));
                    let fed = joint(fed.map(|(_, step)| step).collect::<Vec<_>>());
                    match loss {
                        0 => fed.backward_of::<I0>(&sum).unwrap(),
                        _ => fed.backward_of::<I1>(&sum).unwrap(),
                    }
                }
                for (opt, step) in steps.into_iter().enumerate() {
                    let mut grads = step.unscale().unwrap();
                    let skips = now.is_some_and(|i| scenario.losses[i.loss].1.contains(&opt));
                    if skips {
                        check_skip(&grads.step().unwrap(), now.unwrap(), N::USIZE, &what);
                        continue;
                    }
                    for (name, grad) in grads.grads().unwrap() {
                        let (model, weight) = parse(name);
                        assert_eq!(values(grad), expected[model][weight], "{what} {name}");
                    }
                    assert!(grads.step().unwrap().is_applied(), "{what}");
                    for (model, &(own, lr)) in scenario.models.iter().enumerate() {
                        if own == opt {
                            reference.step(model, expected[model], (lr, scenario.momenta[opt]));
                            if !rounding.masters {
                                reference.masters[model] =
                                    reference.weights(model, rounding.weight);
                            }
                        }
                    }
                }
            }
            for (name, master) in opts.iter().flat_map(|opt| opt.master_params()) {
                let (model, weight) = parse(name);
                assert_eq!(values(master), reference.masters[model][weight], "{what} {name}");
                let variable = &models[model].variables()[&format!("w{weight}")];
                let rounded = reference.weights(model, rounding.weight)[weight];
                assert_eq!(values(variable), rounded, "{what} {name}");
            }
            check_scales(&opts[0].scalers(), injection, &what);
        }
    }
}

/// `"2.w0"`: weight 0 of model 2.
fn parse(name: &str) -> (usize, usize) {
    let (model, weight) = name.split_once(".w").unwrap();
    (model.parse().unwrap(), weight.parse().unwrap())
}

/// The sum of some models' outputs; an injection adds a term with an infinite gradient.
fn sum<L: OptLevel>(models: &Models<L>, of: &[usize], injection: Option<Injection>) -> Tensor {
    let xs = Tensor::from_slice(&[1f32, 1.0]);
    let mut sum = of.iter().map(|&model| models[model].forward(&xs)).sum::<Tensor>();
    if let Some(Injection { model, weight, .. }) = injection {
        let product = models[model].inner();
        let weight = [&product.w0, &product.w1][weight];
        sum += weight.get(1).to_kind(Kind::Float) * f64::INFINITY;
    }
    sum
}

/// Loss 0 overflows alone, so that the scales are 4 and 16 from now on.
fn lower_first_scale<L: OptLevel, N: LossCount, I0: LossId<N>>(
    models: &Models<L>,
    opts: &mut Opts<L, N>,
) {
    let mut step = opts[0].begin();
    let loss = (&models[0].inner().w0 * f64::INFINITY).sum(Kind::Float);
    step.backward_of::<I0>(&loss).unwrap();
    assert!(!step.unscale().unwrap().step().unwrap().is_applied());
    let scales: Vec<_> = opts[0].scalers().iter().map(|scaler| scaler.scale()).collect();
    assert_eq!(scales, [4.0, 16.0]);
}

fn check_skip(outcome: &StepOutcome, injection: Injection, losses: usize, what: &str) {
    let StepOutcome::Skipped { overflows } = outcome else { panic!("{what}: {outcome:?}") };
    let Injection { loss, model, weight, .. } = injection;
    assert_eq!(overflows.len(), 1, "{what}");
    assert_eq!(overflows[0].loss, if losses == 2 { loss } else { 0 }, "{what}");
    assert_eq!(overflows[0].parameter, format!("{model}.w{weight}"), "{what}");
}

/// Two good steps, and a factor of 1/4 for the loss that overflowed.
fn check_scales(scalers: &[tch_amp::Scaler], injection: Option<Injection>, what: &str) {
    let starts = if scalers.len() == 2 { vec![4.0, 16.0] } else { vec![16.0] };
    for (loss, (scaler, start)) in scalers.iter().zip(starts).enumerate() {
        let hit = injection.filter(|i| scalers.len() == 1 || i.loss == loss);
        let factor = if hit.is_some() { 0.25 } else { 1.0 };
        assert_eq!(scaler.scale(), start * factor, "{what}");
        let good = match (hit, injection) {
            (Some(Injection { iteration, .. }), _) => 2 - iteration as u64,
            (None, Some(_)) => 3,
            (None, None) => 2,
        };
        assert_eq!(scaler.unskipped(), good, "{what}");
    }
}

const SCALE: Dynamic = Dynamic::new().init_scale(16.0).backoff_factor(0.25);

/// One scale for both losses, and one each.
fn one_and_two_scales<L: OptLevel>(rounding: &Rounding) {
    run::<L, U1, U0, U0>(rounding, |models, opts| {
        Amp::<L>::builder().loss_scale(SCALE).build(models, opts).unwrap()
    });
    run::<L, U2, U0, U1>(rounding, |models, opts| {
        let builder = Amp::<L>::builder().loss_scale(SCALE).num_losses::<U2>();
        builder.build(models, opts).unwrap()
    });
}

/// The same with `w0` in FP32, as in Apex's test.
fn with_w0_in_fp32<L: AllowsKeepFp32>(rounding: &Rounding) {
    run::<L, U2, U0, U1>(rounding, |models, opts| {
        let w0 = (0..models.len()).map(|model| format!("{model}.w0"));
        let builder = Amp::<L>::builder().loss_scale(SCALE).num_losses::<U2>();
        builder.keep_fp32(w0).build(models, opts).unwrap()
    });
}

fn to_f16(w: f32) -> f32 {
    f16::from_f32(w).to_f32()
}

fn to_bf16(w: f32) -> f32 {
    bf16::from_f32(w).to_f32()
}

#[test]
fn all_scenarios_at_o0() {
    one_and_two_scales::<O0>(&Rounding { weight: &|_, w| w, masters: false });
}

#[test]
fn all_scenarios_at_o1() {
    let exact = Rounding { weight: &|_, w| w, masters: false };
    one_and_two_scales::<O1<f16>>(&exact);
    one_and_two_scales::<O1<bf16>>(&exact);
}

#[test]
fn all_scenarios_at_o2() {
    one_and_two_scales::<O2<f16>>(&Rounding { weight: &|_, w| to_f16(w), masters: true });
    one_and_two_scales::<O2<bf16>>(&Rounding { weight: &|_, w| to_bf16(w), masters: true });
}

#[test]
fn all_scenarios_at_o2_with_some_weights_in_fp32() {
    fn w1_in_f16(weight: usize, w: f32) -> f32 {
        if weight == 0 { w } else { to_f16(w) }
    }
    with_w0_in_fp32::<O2<f16>>(&Rounding { weight: &w1_in_f16, masters: true });
}

#[test]
fn all_scenarios_at_o3() {
    one_and_two_scales::<O3<f16>>(&Rounding { weight: &|_, w| to_f16(w), masters: false });
    one_and_two_scales::<O3<bf16>>(&Rounding { weight: &|_, w| to_bf16(w), masters: false });
}
