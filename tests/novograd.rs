//! NovoGrad against its formula in FP64.

mod common;

use common::given::{Given, Grads, Start, in_fp64, rand, random, training};
use proptest::{prelude::*, sample::select};
use tch_amp::{
    Amp, BuildError, O2, Static, bf16,
    optim::{NormType, NovoGrad},
};

/// Ginsburg et al. 2019, with the options of Apex's `FusedNovoGrad`.
#[derive(Debug, Clone, Copy)]
struct Formula {
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    decay: f64,
    bias_correction: bool,
    inside: bool,
    averaging: bool,
    largest: bool,
    init_zero: bool,
}

/// Apex's defaults.
const DEFAULT: Formula = Formula {
    lr: 1e-3,
    betas: [0.9, 0.999],
    eps: 1e-8,
    decay: 0.0,
    bias_correction: true,
    inside: false,
    averaging: true,
    largest: false,
    init_zero: false,
};

impl Formula {
    fn own(&self) -> NovoGrad {
        let norm = if self.largest { NormType::Max } else { NormType::L2 };
        NovoGrad::new(self.lr)
            .betas(self.betas[0], self.betas[1])
            .eps(self.eps)
            .weight_decay(self.decay)
            .bias_correction(self.bias_correction)
            .reg_inside_moment(self.inside)
            .grad_averaging(self.averaging)
            .norm_type(norm)
            .init_zero(self.init_zero)
    }
}

struct Parameter {
    m: Vec<f64>,
    v: f64,
    steps: i32,
}

struct Reference {
    weights: Vec<Vec<f64>>,
    states: Vec<Parameter>,
}

impl Reference {
    fn new(starts: &[Start]) -> Self {
        let weights: Vec<_> = starts.iter().map(|start| in_fp64(&start.values)).collect();
        let state = |w: &Vec<f64>| Parameter { m: vec![0.0; w.len()], v: 0.0, steps: 0 };
        Self { states: weights.iter().map(state).collect(), weights }
    }

    fn step(&mut self, grads: &Grads, of: impl Fn(usize) -> Formula) {
        for (n, grad) in grads.iter().enumerate() {
            let Some(grad) = grad else { continue };
            let (grad, f, state) = (in_fp64(grad), of(n), &mut self.states[n]);
            let [b1, b2] = f.betas;
            state.steps += 1;
            let norm = match f.largest {
                true => grad.iter().fold(0.0, |largest: f64, g| largest.max(g.abs())),
                false => grad.iter().map(|g| g * g).sum::<f64>().sqrt(),
            };
            state.v = match f.largest {
                _ if state.steps == 1 && !f.init_zero => norm,
                true => b2 * state.v + (1.0 - b2) * norm,
                false => (b2 * state.v.powi(2) + (1.0 - b2) * norm.powi(2)).sqrt(),
            };
            let (c1, c2) = match f.bias_correction {
                true => (1.0 - b1.powi(state.steps), (1.0 - b2.powi(state.steps)).sqrt()),
                false => (1.0, 1.0),
            };
            let d = state.v / c2 + f.eps;
            let fresh = if f.averaging { 1.0 - b1 } else { 1.0 };
            for ((w, m), g) in self.weights[n].iter_mut().zip(&mut state.m).zip(grad) {
                if f.inside {
                    *m = b1 * *m + fresh * (g / d + f.decay * *w);
                    *w -= f.lr * (*m / c1);
                } else {
                    *m = b1 * *m + fresh * g;
                    *w -= f.lr * (*m / c1 / d + f.decay * *w);
                }
            }
        }
    }
}

prop_compose! {
    fn formula()(
        lr in 1e-3..0.1f64,
        betas in [select(vec![0.9, 0.0]), select(vec![0.999, 0.5, 0.0])],
        eps in prop_oneof![Just(1e-8), Just(1e-3)],
        decay in prop_oneof![Just(0.0), Just(0.011)],
        flags in any::<[bool; 5]>(),
    ) -> Formula {
        let [bias_correction, inside, averaging, largest, init_zero] = flags;
        Formula { lr, betas, eps, decay, bias_correction, inside, averaging, largest, init_zero }
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
            given.assert_close(&reference.weights, 1e-5);
        }
    }
}

/// Apex's `TestFusedNovoGrad`: the settings with which its reference, whose options are fewer, does
/// the same. A difference of 1e-3 is allowed there.
#[test]
fn apex_tests_pass() {
    let formula = Formula {
        betas: [0.95, 0.0],
        bias_correction: false,
        inside: true,
        averaging: false,
        ..DEFAULT
    };
    let sizes: [&[usize]; 2] = [&[278_011], &[256 * 64, 256, 256 * 128, 2020 * 64, 1]];
    for sizes in sizes {
        let starts: Vec<_> = sizes.iter().map(|&n| random(n as u64, n)).collect();
        let mut given = Given::new(&starts, formula.own());
        let mut reference = Reference::new(&starts);
        for step in 0..7 {
            let grads = sizes.iter().map(|&n| Some(rand(100 * (step + 1) + n as u64, n))).collect();
            given.step(&grads);
            reference.step(&grads, |_| formula);
            given.assert_close(&reference.weights, 1e-6);
        }
    }
}

#[test]
fn defaults_are_those_of_apex() {
    let starts = [random(1, 100), random(2, 7)];
    let mut given = Given::new(&starts, NovoGrad::new(1e-3));
    let mut reference = Reference::new(&starts);
    for step in 0..5 {
        let grads = vec![Some(rand(100 + step, 100)), Some(rand(200 + step, 7))];
        given.step(&grads);
        reference.step(&grads, |_| DEFAULT);
        given.assert_close(&reference.weights, 1e-6);
    }
}

/// The norm is that of the gradient without its scale.
#[test]
fn masters_follow_the_formula_and_weights_follow_masters() {
    let starts = [random(1, 1000)];
    let builder = Amp::<O2<bf16>>::builder().loss_scale(Static::new(1024.0));
    let formula = Formula { eps: 0.5, decay: 0.1, ..DEFAULT };
    let mut given = Given::build(builder, &starts, formula.own());
    let mut reference = Reference::new(&starts);
    for step in 0..5 {
        let exact = |x: f32| bf16::from_f32(x).to_f32();
        let grads = vec![Some(rand(100 + step, 1000).into_iter().map(exact).collect())];
        given.step(&grads);
        reference.step(&grads, |_| formula);
        given.assert_close(&reference.weights, 1e-6);
        let rounded: Vec<_> = given.masters()[0].iter().copied().map(exact).collect();
        assert_eq!(common::values(&given.parameters[0]), rounded);
    }
}

/// Zero divided by ε is zero; from then on the average grows from zero.
#[test]
fn a_gradient_of_norm_zero_moves_nothing() {
    for largest in [false, true] {
        for inside in [false, true] {
            let formula = Formula { largest, inside, ..DEFAULT };
            let starts = [Start { group: 0, values: vec![1.0, 2.0] }];
            let mut given = Given::new(&starts, formula.own());
            let mut reference = Reference::new(&starts);
            let zero = vec![Some(vec![0.0, 0.0])];
            given.step(&zero);
            reference.step(&zero, |_| formula);
            assert_eq!(given.masters(), [[1.0, 2.0]]);
            let grads = vec![Some(vec![3.0, 4.0])];
            given.step(&grads);
            reference.step(&grads, |_| formula);
            given.assert_close(&reference.weights, 1e-6);
        }
    }
}

/// The state is the moment, of four bytes an element, and four bytes for the tensor.
#[test]
fn second_moment_is_one_number_for_each_tensor() {
    let starts = [random(1, 100), random(2, 7)];
    let mut given = Given::new(&starts, NovoGrad::new(1e-3));
    assert_eq!(given.opt.state_bytes(), 0);
    given.step(&vec![Some(rand(3, 100)), None]);
    assert_eq!(given.opt.state_bytes(), 4 * 101);
    given.step(&vec![Some(rand(3, 100)), Some(rand(4, 7))]);
    assert_eq!(given.opt.state_bytes(), 4 * (101 + 8));
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused = |own, message: &str| {
        let built = Amp::<tch_amp::O0>::builder().build(common::weights(&[1.0]), own);
        let error: BuildError = built.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), format!("NovoGrad: {message}"));
    };
    refused(NovoGrad::new(-1.0), "`lr` is -1: it must be finite and not negative");
    refused(NovoGrad::new(1.0).eps(-1.0), "`eps` is -1: it must be finite and not negative");
    let decay = NovoGrad::new(1.0).weight_decay(-1.0);
    refused(decay, "`weight_decay` is -1: it must be finite and not negative");
    let beta1 = NovoGrad::new(1.0).betas(1.0, 0.9);
    refused(beta1, "`beta1` is 1: it must be at least 0 and less than 1");
    let beta2 = NovoGrad::new(1.0).betas(0.9, -0.5);
    refused(beta2, "`beta2` is -0.5: it must be at least 0 and less than 1");
}
