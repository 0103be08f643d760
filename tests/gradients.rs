//! Gradients on their way from the backward pass to the optimizer: each is unscaled once, in FP32.

mod common;

use common::{Weights, values, weights};
use half::{bf16, f16};
use tch::{Kind, Tensor};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, O0, O1, O2, O3, OptLevel, Static, StepOutcome, optim::Sgd,
    step::NonFinite,
};

/// A model of weights, and plain descent with rate 1, under a static scale.
fn probe<L: OptLevel>(values: &[f32], scale: f64) -> (AmpModel<L, Weights>, AmpOptimizer<L, Sgd>) {
    let builder = Amp::<L>::builder().loss_scale(Static::new(scale));
    builder.build(weights(values), Sgd::new(1.0)).unwrap()
}

/// What a step finds in a loss's gradients.
fn overflow<L: OptLevel>(opt: &mut AmpOptimizer<L, Sgd>, loss: &Tensor) -> NonFinite {
    match opt.backward_step(loss).unwrap().outcome() {
        StepOutcome::Skipped { overflows } => overflows[0].kind,
        other => panic!("{other:?}"),
    }
}

/// 2^-26 is half of half the smallest fp16 number: unscaled in fp16 it would be zero.
#[test]
fn unscaled_gradients_do_not_underflow() {
    fn check<L: OptLevel>() {
        let tiny = 2f32.powi(-26);
        let (model, mut opt) = probe::<L>(&[0.0], 65_536.0);
        let mut step = opt.begin();
        let w = model.inner().0.to_kind(Kind::Float);
        step.backward(&(w * f64::from(tiny)).sum(Kind::Float)).unwrap();
        let mut grads = step.unscale().unwrap();
        assert_eq!(values(grads.grads().unwrap()[0].1), [tiny]);
        assert!(grads.step().unwrap().is_applied());
        assert_eq!(values(opt.master_params().next().unwrap().1), [-tiny]);
    }
    check::<O1<f16>>();
    check::<O2<f16>>();
    check::<O2<bf16>>();
}

/// The gradient of a sum is one number, seen through strides of zero.
#[test]
fn gradient_of_a_plain_sum_is_unscaled_once_for_each_element() {
    fn check<L: OptLevel>() {
        let (model, mut opt) = probe::<L>(&[0.0; 6], 4.0);
        let mut step = opt.begin();
        step.backward(&model.inner().0.sum(Kind::Float)).unwrap();
        let mut grads = step.unscale().unwrap();
        assert_eq!(grads.grad_norm().unwrap().value(), 6f64.sqrt());
        assert_eq!(values(grads.grads().unwrap()[0].1), [1.0; 6]);
        assert!(grads.step().unwrap().is_applied());
        assert_eq!(values(&model.inner().0), [-1.0; 6]);
    }
    check::<O0>();
    check::<O2<f16>>();
    check::<O3<bf16>>();
}

/// 1e40 · 2^-40 is an FP32 number, 1e40 is none.
#[test]
fn gradient_that_overflows_when_it_is_unscaled_is_found() {
    let (model, mut opt) = probe::<O0>(&[1.0], 2f64.powi(-40));
    let loss = (model.inner().0.to_kind(Kind::Double) * 1e40).sum(Kind::Double);
    let mut step = opt.begin();
    let scaled = step.scale_loss(&loss).unwrap();
    assert!(scaled.tensor().double_value(&[]) < f64::from(f32::MAX));
    drop(scaled);
    drop(step);
    assert_eq!(overflow(&mut opt, &loss), NonFinite::Inf);
    assert_eq!(values(&model.inner().0), [1.0]);
}

/// A gradient of 1e300 is finite in the FP64 part of the graph only.
#[test]
fn gradient_of_an_fp64_loss_beyond_fp32_is_an_overflow() {
    let (model, mut opt) = probe::<O1<bf16>>(&[1.0], 2.0);
    let loss = (model.inner().0.to_kind(Kind::Double) * 1e300).sum(Kind::Double);
    assert_eq!(overflow(&mut opt, &loss), NonFinite::Inf);
    assert_eq!(values(&model.inner().0), [1.0]);
}

/// Before the decision to skip, the gradients can be looked at; clipping leaves them alone.
#[test]
fn gradients_of_an_overflow_can_be_read() {
    let (model, mut opt) = probe::<O2<f16>>(&[1.0, 1.0], 1024.0);
    let mut step = opt.begin();
    let c = Tensor::from_slice(&[0.5f32, 1000.0]);
    let w = model.inner().0.to_kind(Kind::Float);
    step.backward(&(w * c).sum(Kind::Float)).unwrap();
    let mut grads = step.unscale().unwrap();
    assert_eq!(grads.clip_grad_norm(1.0).unwrap().value(), f64::INFINITY);
    grads.clip_grad_value(0.25).unwrap();
    assert_eq!(values(grads.grads().unwrap()[0].1), [0.5, f32::INFINITY]);
    assert!(!grads.step().unwrap().is_applied());
}

#[test]
fn skipped_step_leaves_no_gradients() {
    let (model, mut opt) = probe::<O2<f16>>(&[1.0], 1024.0);
    let w = model.inner().0.to_kind(Kind::Float);
    assert_eq!(overflow(&mut opt, &(w * 1000.0).sum(Kind::Float)), NonFinite::Inf);
    assert!(!model.inner().0.grad().defined());
}

/// Apex leaves scaled gradients in weights whose optimizer was not passed to `scale_loss`.
#[test]
fn loss_that_reaches_another_model_does_not_enter_its_step() {
    let (a, mut opt_a) = probe::<O2<f16>>(&[1.0], 1024.0);
    let (b, mut opt_b) = probe::<O2<f16>>(&[1.0], 8.0);
    let [wa, wb] = [&a, &b].map(|model| model.inner().0.to_kind(Kind::Float));
    let both = (wa * 0.5 + &wb * 0.25).sum(Kind::Float);
    assert!(opt_a.backward_step(&both).unwrap().outcome().is_applied());
    assert_eq!((values(&a.inner().0), values(&b.inner().0)), (vec![0.5], vec![1.0]));
    let own = (b.inner().0.to_kind(Kind::Float) * 0.125).sum(Kind::Float);
    assert!(opt_b.backward_step(&own).unwrap().outcome().is_applied());
    assert_eq!(values(&b.inner().0), [0.875]);
}

/// torch's test_params_invalidated_with_grads_invalidated_between_unscale_and_step, which asserts
/// that the weights become NaN.
#[test]
fn what_is_written_to_lent_gradients_is_checked_again() {
    fn check<L: OptLevel>() {
        let (model, mut opt) = probe::<L>(&[1.0], 2.0);
        for (written, applied) in [(f64::NAN, false), (0.5, true)] {
            let mut step = opt.begin();
            step.backward(&model.inner().0.sum(Kind::Float)).unwrap();
            let mut grads = step.unscale().unwrap();
            let _ = grads.grads().unwrap()[0].1.shallow_clone().fill_(written);
            assert_eq!(grads.step().unwrap().is_applied(), applied);
        }
        assert_eq!(values(&model.inner().0), [0.5]);
    }
    check::<O1<bf16>>();
    check::<O2<f16>>();
    check::<O3<bf16>>();
}
