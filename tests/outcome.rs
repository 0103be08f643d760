//! What a step tells: which gradients were not finite, and whether a schedule may go on.

use tch::{Kind, Tensor};
use tch_amp::{Amp, O0, O2, StepOutcome, bf16, optim::Sgd};

mod common;
use common::weights;

#[test]
fn non_finite_gradients_are_counted_by_name() {
    let (store, module) = weights(&[1.0; 4]);
    let other = store.root().ones("other", &[2]);
    let third = store.root().ones("third", &[2]);
    let (model, mut opt) =
        Amp::<O2<bf16>>::builder().build((store, module), Sgd::new(1.0)).unwrap();
    let bad = Tensor::from_slice(&[f32::INFINITY, f32::NAN, 1.0, f32::NEG_INFINITY]);
    let mut step = opt.begin();
    let nan = Tensor::from_slice(&[f32::NAN, f32::NAN]);
    let loss = (&model.inner().0 * bad) + other.sum(Kind::Float) + (third * nan).sum(Kind::Float);
    step.backward(&loss.sum(Kind::Float)).unwrap();
    let grads = step.unscale().unwrap();
    let found = grads.non_finite().unwrap();
    let found: Vec<_> =
        found.iter().map(|g| (g.parameter.as_str(), g.inf, g.nan, g.elements)).collect();
    assert_eq!(found, [("w", 2, 1, 4), ("third", 0, 2, 2)]);
    assert!(!grads.step().unwrap().is_applied());
    let mut step = opt.begin();
    step.backward(&other.sum(Kind::Float)).unwrap();
    assert!(step.unscale().unwrap().non_finite().unwrap().is_empty());
}

/// At O0 nothing is checked, but whoever asks is told.
#[test]
fn non_finite_gradients_are_counted_at_o0_too() {
    let (model, mut opt) = Amp::<O0>::builder().build(weights(&[1.0]), Sgd::new(1.0)).unwrap();
    let mut step = opt.begin();
    step.backward(&(&model.inner().0 * f64::INFINITY).sum(Kind::Float)).unwrap();
    let found = step.unscale().unwrap().non_finite().unwrap();
    assert_eq!((found.len(), found[0].inf, found[0].nan), (1, 1, 0));
}

#[test]
fn a_schedule_advances_on_applied_steps_only() {
    let (model, mut opt) =
        Amp::<O2<bf16>>::builder().build(weights(&[1.0]), Sgd::new(1.0)).unwrap();
    let mut advanced = 0;
    for grad in [1.0, f64::NAN, 1.0] {
        let loss = (&model.inner().0 * grad).sum(Kind::Float);
        let told = opt.backward_step(&loss).unwrap().outcome().on_applied(|| advanced += 1);
        assert_eq!(told.is_some(), grad.is_finite());
    }
    assert_eq!(advanced, 2);
    assert_eq!(StepOutcome::NoGradients.on_applied(|| ()), None);
}
