//! Adagrad against its formula in FP64.

mod common;

use common::given::{Given, Grads, Start, in_fp64, rand, random, training};
use proptest::prelude::*;
use tch_amp::{Amp, BuildError, O2, Static, bf16, optim::Adagrad};

/// Duchi et al. 2011 with diagonal matrices; weight decay as in Apex's `FusedAdagrad`.
#[derive(Debug, Clone, Copy)]
struct Formula {
    lr: f64,
    eps: f64,
    decay: f64,
    decoupled: bool,
}

struct Reference {
    weights: Vec<Vec<f64>>,
    sums: Vec<Vec<f64>>,
}

impl Reference {
    fn new(starts: &[Start]) -> Self {
        let weights: Vec<_> = starts.iter().map(|start| in_fp64(&start.values)).collect();
        Self { sums: weights.iter().map(|w| vec![0.0; w.len()]).collect(), weights }
    }

    fn step(&mut self, grads: &Grads, of: impl Fn(usize) -> Formula) {
        for (n, grad) in grads.iter().enumerate() {
            let Some(grad) = grad else { continue };
            let Formula { lr, eps, decay, decoupled } = of(n);
            for (i, &grad) in grad.iter().enumerate() {
                let (w, sum) = (&mut self.weights[n][i], &mut self.sums[n][i]);
                let g = f64::from(grad) + if decoupled { 0.0 } else { decay * *w };
                *sum += g * g;
                let decay = if decoupled { lr * decay * *w } else { 0.0 };
                *w -= lr * (g / (sum.sqrt() + eps)) + decay;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn agrees_with_the_formula(
        (starts, steps) in training(),
        lr in 1e-3..0.3f64,
        eps in prop_oneof![Just(1e-10), Just(1e-3)],
        decays in [prop_oneof![Just(0.0), Just(0.011)], prop_oneof![Just(0.0), Just(0.011)]],
        decoupled in any::<bool>(),
    ) {
        let mut own = Adagrad::new(lr).eps(eps).weight_decay(decays[0]).adagrad_w_mode(decoupled);
        if starts.iter().any(|start| start.group == 1) {
            own = own.group(1, |g| g.weight_decay(decays[1]));
        }
        let mut given = Given::new(&starts, own);
        let mut reference = Reference::new(&starts);
        for grads in &steps {
            given.step(grads);
            reference.step(grads, |n| Formula {
                lr, eps, decay: decays[starts[n].group], decoupled,
            });
            given.assert_close(&reference.weights, 5e-6);
        }
    }
}

/// Apex's `test_adagrad` and `test_adagrad_option`, against torch's rule; a difference of 1e-3 is
/// allowed there.
#[test]
fn apex_tests_pass() {
    for (elements, lr, eps, decay) in [(278_011, 5e-4, 1e-10, 1e-5), (1, 0.01, 3e-6, 0.0)] {
        let starts = [random(1, elements)];
        let mut given = Given::new(&starts, Adagrad::new(lr).eps(eps).weight_decay(decay));
        let mut reference = Reference::new(&starts);
        for step in 0..7 {
            let grads = vec![Some(rand(100 + step, elements))];
            given.step(&grads);
            reference.step(&grads, |_| Formula { lr, eps, decay, decoupled: false });
            given.assert_close(&reference.weights, 1e-6);
        }
    }
}

/// Masters get every bit of the update, and the weights are the masters, rounded.
#[test]
fn masters_follow_the_formula_and_weights_follow_masters() {
    let starts = [random(1, 1000)];
    let builder = Amp::<O2<bf16>>::builder().loss_scale(Static::new(1024.0));
    let mut given = Given::build(builder, &starts, Adagrad::new(1e-3));
    let mut reference = Reference::new(&starts);
    for step in 0..5 {
        let exact = |x: f32| bf16::from_f32(x).to_f32();
        let grads = vec![Some(rand(100 + step, 1000).into_iter().map(exact).collect())];
        given.step(&grads);
        let formula = Formula { lr: 1e-3, eps: 1e-10, decay: 0.0, decoupled: false };
        reference.step(&grads, |_| formula);
        given.assert_close(&reference.weights, 1e-6);
        let rounded: Vec<_> = given.masters()[0].iter().copied().map(exact).collect();
        assert_eq!(common::values(&given.parameters[0]), rounded);
    }
}

/// The first step is lr · g / (|g| + ε), and there is none without a gradient.
#[test]
fn zero_gradients_move_nothing() {
    let starts = [Start { group: 0, values: vec![1.0, 1.0] }];
    let mut given = Given::new(&starts, Adagrad::new(0.5));
    given.step(&vec![Some(vec![0.0, 4.0])]);
    given.assert_close(&[vec![1.0, 0.5]], 1e-7);
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused = |own, message: &str| {
        let built = Amp::<tch_amp::O0>::builder().build(common::weights(&[1.0]), own);
        let error: BuildError = built.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), message);
    };
    let message =
        |setting| format!("Adagrad: `{setting}` is -1: it must be finite and not negative");
    refused(Adagrad::new(-1.0), &message("lr"));
    refused(Adagrad::new(0.1).eps(-1.0), &message("eps"));
    refused(Adagrad::new(0.1).weight_decay(-1.0), &message("weight_decay"));
}
