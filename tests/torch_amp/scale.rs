//! The scale's own rule, in steps counted by hand.

use half::f16;
use tch::Kind;
use tch_amp::{Amp, AmpModel, AmpOptimizer, Dynamic, O0, O2, OptLevel, StepOutcome, optim::Sgd};

use crate::common::{Weights, values, weights};

type Built<L> = (AmpModel<L, Weights>, AmpOptimizer<L, Sgd>);

fn build<L: OptLevel>(scale: Dynamic, lr: f64) -> Built<L> {
    Amp::<L>::builder().loss_scale(scale).build(weights(&[1.0]), Sgd::new(lr)).unwrap()
}

fn scale_and_tracker<L: OptLevel>(opt: &AmpOptimizer<L, Sgd>) -> (f64, u64) {
    (opt.scalers()[0].scale(), opt.scalers()[0].unskipped())
}

/// One step with the gradient `gradient`.
fn step<L: OptLevel>((model, opt): &mut Built<L>, gradient: f64) -> StepOutcome {
    let loss = (model.inner().0.to_kind(Kind::Float) * gradient).sum(Kind::Float);
    opt.backward_step(&loss).unwrap().outcome()
}

/// test_grad_scaling_update_scale
#[test]
fn two_good_steps_double_and_an_infinity_quarters() {
    let scale = Dynamic::new().init_scale(4.0).growth_interval(2).backoff_factor(0.25);
    let mut built = build::<O0>(scale, 0.0);
    let mut seen = Vec::new();
    for gradient in [1.0, 1.0, f64::INFINITY] {
        let _ = step(&mut built, gradient);
        seen.push(scale_and_tracker(&built.1));
    }
    assert_eq!(seen, [(4.0, 1), (8.0, 0), (2.0, 0)]);
}

/// test_grad_scale_will_not_overflow
#[test]
fn the_scale_does_not_grow_to_infinity() {
    let scale = Dynamic::new().max_loss_scale(f64::from(f32::MAX)).init_scale(1e38);
    let mut built = build::<O0>(scale.growth_factor(16.0).growth_interval(1), 1.0);
    assert!(step(&mut built, 0.0).is_applied());
    // 16e38 is no FP32 number.
    assert_eq!(scale_and_tracker(&built.1), (f64::from(1e38f32), 0));
}

/// test_graph_grad_scaling, without the graph: gradients, scales and trackers.
#[test]
fn fp16_gradients_overflow_at_the_scale_they_were_made_with() {
    let (model, mut opt) = build::<O2<f16>>(Dynamic::new().init_scale(4.0), 0.0);
    let mut scaled = Vec::new();
    let mut seen = Vec::new();
    for input in [5.0, 20_000.0, 5.0, 40_000.0] {
        let before = scale_and_tracker(&opt).0;
        let loss = (model.inner().0.to_kind(Kind::Float) * input).sum(Kind::Float);
        let mut step = opt.begin();
        step.backward(&loss).unwrap();
        let mut step = step.unscale().unwrap();
        let gradient = values(step.grads().unwrap()[0].1)[0];
        scaled.push(f64::from(gradient) * before);
        let _ = step.step().unwrap();
        seen.push(scale_and_tracker(&opt));
    }
    // 4·20000 and 2·40000 are above 65504.
    assert_eq!(scaled, [20.0, f64::INFINITY, 10.0, f64::INFINITY]);
    assert_eq!(seen, [(4.0, 1), (2.0, 0), (2.0, 1), (1.0, 0)]);
}

/// The exact scale after any number of steps, by torch's rule with a growth interval of 1.
#[test]
fn scale_is_a_product_of_growths_and_backoffs() {
    let scale = Dynamic::new().init_scale(128.0).growth_factor(4.0).backoff_factor(0.125);
    let mut built = build::<O0>(scale.growth_interval(1), 0.0);
    let (mut unskipped, mut skipped) = (0, 0);
    for gradient in [1.0, f64::NAN, 1.0, 1.0, f64::INFINITY, 1.0, 1.0, 1.0, f64::NEG_INFINITY] {
        match step(&mut built, gradient).is_applied() {
            true => unskipped += 1,
            false => skipped += 1,
        }
        let expected = 128.0 * 4f64.powi(unskipped) * 0.125f64.powi(skipped);
        assert_eq!(scale_and_tracker(&built.1).0, expected);
    }
    assert_eq!((unskipped, skipped, built.1.scalers()[0].skipped()), (6, 3, 3));
}

/// torch's `update` between two micro-batches changes the scale in the middle of a step; Apex counts
/// each backward pass.
#[test]
fn the_tracker_counts_steps_not_backward_passes() {
    let scale = Dynamic::new().init_scale(4.0).growth_interval(3);
    let (model, mut opt) = build::<O2>(scale, 0.0);
    for seen in [(4.0, 1), (4.0, 2), (8.0, 0)] {
        let mut step = opt.begin();
        for _ in 0..5 {
            step.backward(&model.inner().0.sum(Kind::Float)).unwrap();
        }
        assert!(step.unscale().unwrap().step().unwrap().is_applied());
        assert_eq!(scale_and_tracker(&opt), seen);
    }
}
