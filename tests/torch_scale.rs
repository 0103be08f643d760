//! What torch's tests of its scale ask for, asked of this one.

mod common;

use tch::Kind;
use tch_amp::{Amp, Dynamic, O2, Scaler, optim::Sgd};

/// `test_grad_scaling_update_scale`.
#[test]
fn scale_and_counter_follow_good_steps_and_overflows() {
    let settings =
        Dynamic::new().init_scale(4.0).growth_factor(2.0).backoff_factor(0.25).growth_interval(2);
    let mut scaler = Scaler::new(settings.into());
    for (overflow, counter, scale) in [(false, 1, 4.0), (false, 0, 8.0), (true, 0, 2.0)] {
        scaler.update(overflow);
        assert_eq!((scaler.unskipped(), scaler.scale()), (counter, scale));
    }
}

/// `test_grad_scale_will_not_overflow`: 16 · 1e38 is no FP32 number.
#[test]
fn growth_does_not_leave_fp32() {
    let settings = Dynamic::new()
        .max_loss_scale(f64::from(f32::MAX))
        .init_scale(1e38)
        .growth_factor(2f64.powi(4))
        .growth_interval(1);
    let mut scaler = Scaler::new(settings.into());
    for _ in 0..3 {
        scaler.update(false);
        assert_eq!(scaler.scale(), f64::from(1e38f32));
        assert_eq!(scaler.unskipped(), 0);
    }
}

/// `test_graph_grad_scaling`: an FP16 gradient is the scale times the input.
#[test]
fn fp16_gradients_that_overflow_lower_the_scale() {
    let scale = Dynamic::new().init_scale(4.0);
    let builder = Amp::<O2>::builder().loss_scale(scale);
    let (model, mut opt) = builder.build(common::weights(&[1.0]), Sgd::new(0.0)).unwrap();
    let steps =
        [(5.0, true, 4.0, 1), (2e4, false, 2.0, 0), (5.0, true, 2.0, 1), (4e4, false, 1.0, 0)];
    for (input, applied, scale, counter) in steps {
        let loss = (&model.inner().0 * input).sum(Kind::Float);
        let outcome = opt.backward_step(&loss).unwrap().outcome();
        assert_eq!(outcome.is_applied(), applied, "{input}");
        assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (scale, counter));
    }
}

/// torch's `update` between two micro-batches changes the scale in the middle of a step; Apex counts
/// each backward pass.
#[test]
fn the_counter_counts_steps_not_backward_passes() {
    let scale = Dynamic::new().init_scale(4.0).growth_interval(3);
    let builder = Amp::<O2>::builder().loss_scale(scale);
    let (model, mut opt) = builder.build(common::weights(&[1.0]), Sgd::new(0.0)).unwrap();
    for (scale, counter) in [(4.0, 1), (4.0, 2), (8.0, 0)] {
        let mut step = opt.begin();
        for _ in 0..5 {
            step.backward(&model.inner().0.sum(Kind::Float)).unwrap();
        }
        assert!(step.unscale().unwrap().step().unwrap().is_applied());
        assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (scale, counter));
    }
}
