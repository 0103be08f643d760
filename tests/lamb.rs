//! Lamb against its formula in FP64.

mod common;

use common::given::{Given, Grads, Start, in_fp64, rand, random, training};
use proptest::{prelude::*, sample::select};
use tch_amp::{Amp, BuildError, O2, O3, Rounding, Static, bf16, optim::Lamb};

/// You et al. 2019, with the options of Apex's `FusedLAMB`.
#[derive(Debug, Clone, Copy)]
struct Formula {
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    decay: f64,
    bias_correction: bool,
    decoupled: bool,
    averaging: bool,
    max_norm: Option<f64>,
    nvlamb: bool,
}

/// Apex's defaults.
const DEFAULT: Formula = Formula {
    lr: 1e-3,
    betas: [0.9, 0.999],
    eps: 1e-6,
    decay: 0.01,
    bias_correction: true,
    decoupled: true,
    averaging: true,
    max_norm: Some(1.0),
    nvlamb: false,
};

impl Formula {
    fn own(&self) -> Lamb {
        Lamb::new(self.lr)
            .betas(self.betas[0], self.betas[1])
            .eps(self.eps)
            .weight_decay(self.decay)
            .bias_correction(self.bias_correction)
            .adam_w_mode(self.decoupled)
            .grad_averaging(self.averaging)
            .max_grad_norm(self.max_norm)
            .use_nvlamb(self.nvlamb)
    }
}

struct Moments {
    m: Vec<f64>,
    v: Vec<f64>,
    steps: i32,
}

struct Reference {
    weights: Vec<Vec<f64>>,
    states: Vec<Moments>,
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

impl Reference {
    fn new(starts: &[Start]) -> Self {
        let weights: Vec<_> = starts.iter().map(|start| in_fp64(&start.values)).collect();
        let zeros = |w: &Vec<f64>| vec![0.0; w.len()];
        let state = |w: &Vec<f64>| Moments { m: zeros(w), v: zeros(w), steps: 0 };
        Self { states: weights.iter().map(state).collect(), weights }
    }

    fn step(&mut self, grads: &Grads, of: impl Fn(usize) -> Formula) {
        let all: Vec<_> = grads.iter().flatten().flatten().copied().map(f64::from).collect();
        let of_all = norm(&all);
        for (n, grad) in grads.iter().enumerate() {
            let Some(grad) = grad else { continue };
            let (f, state, weights) = (of(n), &mut self.states[n], &mut self.weights[n]);
            let clip = f.max_norm.map_or(1.0, |most| most / of_all.max(most));
            let [b1, b2] = f.betas;
            state.steps += 1;
            let (c1, c2) = match f.bias_correction {
                true => (1.0 - b1.powi(state.steps), 1.0 - b2.powi(state.steps)),
                false => (1.0, 1.0),
            };
            let (l2, decay) = if f.decoupled { (0.0, f.decay) } else { (f.decay, 0.0) };
            let fresh = if f.averaging { 1.0 - b1 } else { 1.0 };
            let mut update = Vec::new();
            for (i, w) in weights.iter().enumerate() {
                let g = f64::from(grad[i]) * clip + l2 * w;
                state.m[i] = b1 * state.m[i] + fresh * g;
                state.v[i] = b2 * state.v[i] + (1.0 - b2) * g * g;
                let adam = state.m[i] / c1 / ((state.v[i] / c2).sqrt() + f.eps);
                update.push(adam + decay * w);
            }
            let (of_weights, of_update) = (norm(weights), norm(&update));
            let trusts = (f.decay != 0.0 || f.nvlamb) && of_weights > 0.0 && of_update > 0.0;
            let ratio = if trusts { of_weights / of_update } else { 1.0 };
            for (w, u) in weights.iter_mut().zip(update) {
                *w -= f.lr * ratio * u;
            }
        }
    }
}

prop_compose! {
    fn formula()(
        lr in 1e-3..0.1f64,
        betas in [select(vec![0.9, 0.0]), select(vec![0.999, 0.5])],
        eps in prop_oneof![Just(1e-6), Just(1e-3)],
        decay in prop_oneof![Just(0.0), Just(0.011)],
        flags in any::<[bool; 4]>(),
        max_norm in prop_oneof![Just(None), Just(Some(1.0)), Just(Some(20.0))],
    ) -> Formula {
        let [bias_correction, decoupled, averaging, nvlamb] = flags;
        // Clipping brings gradients near the size of an L2 penalty: see `training`.
        let max_norm = max_norm.filter(|_| decoupled);
        Formula { lr, betas, eps, decay, bias_correction, decoupled, averaging, max_norm, nvlamb }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn agrees_with_the_formula((starts, steps) in training(), formulas in [formula(), formula()]) {
        let mut own = formulas[0].own();
        if starts.iter().any(|start| start.group == 1) {
            own = own.group(1, |_| formulas[1].own());
        }
        let mut given = Given::new(&starts, own);
        let mut reference = Reference::new(&starts);
        for grads in &steps {
            given.step(grads);
            reference.step(grads, |n| formulas[starts[n].group]);
            given.assert_close(&reference.weights, 2e-5);
        }
    }
}

/// Apex's `TestFusedLAMB`, whose reference scales steps at any decay, and which allows a difference
/// of 1e-3. The shapes of `test_multi_params` are smaller, to stay fast in a debug build.
#[test]
fn apex_tests_pass() {
    let formula = Formula { lr: 5e-4, eps: 1e-8, nvlamb: true, ..DEFAULT };
    let option = Formula { lr: 0.01, betas: [0.6, 0.9], eps: 3e-6, nvlamb: true, ..DEFAULT };
    let cases: [(Formula, &[usize]); 3] = [
        (formula, &[278_011]),
        (formula, &[256 * 64, 256, 256 * 128, 2020 * 64, 1]),
        (option, &[1]),
    ];
    for (formula, sizes) in cases {
        for decay in [0.0, 0.01] {
            let formula = Formula { decay, ..formula };
            let starts: Vec<_> = sizes.iter().map(|&n| random(n as u64, n)).collect();
            let mut given = Given::new(&starts, formula.own());
            let mut reference = Reference::new(&starts);
            for step in 0..7 {
                let grad = |&n: &usize| Some(rand(100 * (step + 1) + n as u64, n));
                let grads = sizes.iter().map(grad).collect();
                given.step(&grads);
                reference.step(&grads, |_| formula);
                given.assert_close(&reference.weights, 1e-5);
            }
        }
    }
}

#[test]
fn defaults_are_those_of_apex() {
    let starts = [random(1, 100), random(2, 7)];
    let mut given = Given::new(&starts, Lamb::new(1e-3));
    let mut reference = Reference::new(&starts);
    for step in 0..5 {
        let grads = vec![Some(rand(100 + step, 100)), Some(rand(200 + step, 7))];
        given.step(&grads);
        reference.step(&grads, |_| DEFAULT);
        given.assert_close(&reference.weights, 1e-6);
    }
}

/// FusedMixedPrecisionLamb's test: scaled gradients in 16 bits for FP32 masters.
#[test]
fn masters_follow_the_formula_and_weights_follow_masters() {
    let starts = [random(1, 1000)];
    let builder = Amp::<O2<bf16>>::builder().loss_scale(Static::new(1024.0));
    let mut given = Given::build(builder, &starts, Lamb::new(1e-3));
    let mut reference = Reference::new(&starts);
    for step in 0..5 {
        let exact = |x: f32| bf16::from_f32(x).to_f32();
        let grads = vec![Some(rand(100 + step, 1000).into_iter().map(exact).collect())];
        given.step(&grads);
        reference.step(&grads, |_| DEFAULT);
        given.assert_close(&reference.weights, 1e-6);
        let rounded: Vec<_> = given.masters()[0].iter().copied().map(exact).collect();
        assert_eq!(common::values(&given.parameters[0]), rounded);
    }
}

/// Without masters a step goes to one of the two 16-bit neighbours of the formula's weight.
#[test]
fn weights_without_masters_go_to_a_neighbour() {
    let exact = |x: f32| bf16::from_f32(x).to_f32();
    let starts = [Start { group: 0, values: rand(1, 1000).into_iter().map(exact).collect() }];
    let grads = vec![Some(rand(2, 1000).into_iter().map(exact).collect())];
    for rounding in [Rounding::Nearest, Rounding::Stochastic { seed: 1 }] {
        let builder = Amp::<O3<bf16>>::builder().rounding(rounding);
        let mut given = Given::build(builder, &starts, Lamb::new(0.1));
        let mut reference = Reference::new(&starts);
        given.step(&grads);
        reference.step(&grads, |_| Formula { lr: 0.1, ..DEFAULT });
        let mut to_nearest = 0;
        for (&actual, &expected) in given.masters()[0].iter().zip(&reference.weights[0]) {
            let distance = (f64::from(actual) - expected).abs();
            let step = 2f64.powi(expected.abs().log2().floor() as i32 - 7);
            assert!(distance <= step * 1.001, "{actual}, not {expected}");
            to_nearest += usize::from(distance <= step / 2.0 * 1.001);
        }
        let all = to_nearest == 1000;
        assert_eq!(all, rounding == Rounding::Nearest, "{rounding:?}: {to_nearest} to the nearest");
    }
}

/// Where a norm is zero the step is Adam's: lr · g / (|g| + ε), and lr · decay · w.
#[test]
fn without_a_norm_the_step_is_not_scaled() {
    let starts =
        [Start { group: 0, values: vec![0.0, 0.0] }, Start { group: 0, values: vec![2.0, -2.0] }];
    let mut given = Given::new(&starts, Lamb::new(0.125).weight_decay(0.5).max_grad_norm(None));
    given.step(&vec![Some(vec![3.0, -4.0]), None]);
    given.assert_close(&[vec![-0.125, 0.125], vec![2.0, -2.0]], 1e-6);
    // With g = 0 the direction is decay · w, and the step as long as the weights, times lr.
    given.step(&vec![None, Some(vec![0.0, 0.0])]);
    given.assert_close(&[vec![-0.125, 0.125], vec![1.75, -1.75]], 1e-6);
    // Neither has a norm.
    let mut given = Given::new(&starts[..1], Lamb::new(0.125).weight_decay(0.5));
    given.step(&vec![Some(vec![0.0, 0.0])]);
    assert_eq!(given.masters(), [[0.0, 0.0]]);
}

/// Gradients of norm 5 over two parameters: a fifth of each.
#[test]
fn gradients_are_clipped_by_the_norm_of_all() {
    let first_moments = |own: Lamb, grads: Grads| {
        let starts = vec![Start { group: 0, values: vec![1.0] }; grads.len()];
        let mut given = Given::new(&starts, own.betas(0.0, 0.0).eps(1.0).weight_decay(0.0));
        given.step(&grads);
        given.masters().into_iter().flatten().collect::<Vec<_>>()
    };
    // w = 1 - lr · g / (|g| + 1)
    let close = |actual: Vec<f32>, expected: &[f32]| {
        assert_eq!(actual.len(), expected.len());
        assert!(actual.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{actual:?}");
    };
    let both = || vec![Some(vec![3.0]), Some(vec![4.0])];
    close(first_moments(Lamb::new(1.0), both()), &[1.0 - 0.6 / 1.6, 1.0 - 0.8 / 1.8]);
    let limit = Lamb::new(1.0).max_grad_norm(2.5);
    close(first_moments(limit, both()), &[1.0 - 1.5 / 2.5, 1.0 - 2.0 / 3.0]);
    let none = Lamb::new(1.0).max_grad_norm(None);
    close(first_moments(none, both()), &[1.0 - 3.0 / 4.0, 1.0 - 4.0 / 5.0]);
    close(first_moments(Lamb::new(1.0), vec![Some(vec![0.5])]), &[1.0 - 0.5 / 1.5]);
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused = |own, message: &str| {
        let built = Amp::<tch_amp::O0>::builder().build(common::weights(&[1.0]), own);
        let error: BuildError = built.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), format!("Lamb: {message}"));
    };
    refused(Lamb::new(-1.0), "`lr` is -1: it must be finite and not negative");
    refused(Lamb::new(1.0).eps(-1.0), "`eps` is -1: it must be finite and not negative");
    let decay = Lamb::new(1.0).weight_decay(-1.0);
    refused(decay, "`weight_decay` is -1: it must be finite and not negative");
    let beta1 = Lamb::new(1.0).betas(1.0, 0.9);
    refused(beta1, "`beta1` is 1: it must be at least 0 and less than 1");
    let beta2 = Lamb::new(1.0).betas(0.9, 1.5);
    refused(beta2, "`beta2` is 1.5: it must be at least 0 and less than 1");
    for limit in [0.0, f64::INFINITY] {
        let message =
            format!("`max_grad_norm` is {limit}: it must be finite and above 0, or `None`");
        refused(Lamb::new(1.0).max_grad_norm(limit), &message);
    }
}
