//! One step: accumulation, clipping, what is refused, and a step without gradients.

mod common;

use common::{Net, batches, bits, mse, snapshot, values};
use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Dynamic, O0, O1, O2, O3, OptLevel, Static, StepError, StepOutcome,
    optim::Sgd,
};
use typenum::{U1, U2};

type Probe<L> = (AmpModel<L, common::Weights>, AmpOptimizer<L, Sgd>);

fn probe<L: OptLevel>(weights: &[f32], scale: f64, lr: f64) -> Probe<L> {
    let builder = Amp::<L>::builder().loss_scale(Static::new(scale));
    builder.build(common::weights(weights), Sgd::new(lr)).unwrap()
}

/// A loss whose gradient is `c`.
fn linear<L: OptLevel>(model: &AmpModel<L, common::Weights>, c: &[f32]) -> Tensor {
    (model.inner().0.to_kind(Kind::Float) * Tensor::from_slice(c)).sum(Kind::Float)
}

/// ml-by-hand#85: in fp16, ones add up to 2048 and no further.
#[test]
fn gradients_add_up_in_fp32() {
    fn sum<L: OptLevel>() -> Vec<f32> {
        let (model, mut opt) = probe::<L>(&[1.0], 1.0, 1.0);
        let mut step = opt.begin();
        for _ in 0..4096 {
            step.backward(&linear(&model, &[1.0])).unwrap();
        }
        let mut grads = step.unscale().unwrap();
        let sum = values(grads.grads().unwrap()[0].1);
        assert!(grads.step().unwrap().is_applied());
        sum
    }
    assert_eq!(sum::<O2<f16>>(), [4096.0]);
    assert_eq!(sum::<O2<bf16>>(), [4096.0]);
    assert_eq!(sum::<O3<f16>>(), [4096.0]);
    assert_eq!(sum::<O0>(), [4096.0]);
}

/// 40000 + 40000 is no fp16 number, but a gradient.
#[test]
fn sum_may_exceed_the_16_bit_range() {
    let (model, mut opt) = probe::<O2>(&[1.0], 1.0, 1.0);
    let mut step = opt.begin();
    for _ in 0..2 {
        step.backward(&linear(&model, &[40_000.0])).unwrap();
    }
    let mut grads = step.unscale().unwrap();
    assert_eq!(values(grads.grads().unwrap()[0].1), [80_000.0]);
    assert!(grads.step().unwrap().is_applied());
}

/// NVIDIA/apex#286: the sum is not divided by the number of passes.
#[test]
fn accumulation_sums_and_does_not_average() {
    let (model, mut opt) = probe::<O2>(&[1.0], 1024.0, 0.1);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[1.0])).unwrap();
    step.backward(&linear(&model, &[1.0])).unwrap();
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
    let master = values(opt.master_params().next().unwrap().1);
    assert_eq!(master, [1.0 - 0.1f32 * 2.0]);
}

/// pytorch#36601: one scale for all micro-batches of a step, one update of it.
#[test]
fn scale_is_frozen_within_a_step() {
    let scale = Dynamic::new().init_scale(1024.0).growth_interval(1);
    let builder = Amp::<O2>::builder().loss_scale(scale);
    let (model, mut opt) = builder.build(common::weights(&[1.0]), Sgd::new(1.0)).unwrap();
    let mut step = opt.begin();
    for _ in 0..2 {
        let scaled = step.scale_loss(&linear(&model, &[0.25])).unwrap();
        assert_eq!(values(scaled.tensor()), [256.0]);
        scaled.backward().unwrap();
    }
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!(values(&model.inner().0), [0.5]);
    assert_eq!(opt.scalers()[0].scale(), 2048.0);
}

#[test]
fn losses_with_different_scales_add_up_exactly() {
    let builder = Amp::<O2>::builder().num_losses::<U2>().loss_scale(Dynamic::new());
    let (model, mut opt) = builder.build(common::weights(&[1.0]), Sgd::new(1.0)).unwrap();
    // Loss 1 overflows alone, so that the scales differ.
    let mut step = opt.begin();
    step.backward_of::<U1>(&linear(&model, &[1.0])).unwrap();
    let outcome = step.unscale().unwrap().step().unwrap();
    assert!(matches!(outcome, StepOutcome::Skipped { .. }));
    assert_eq!(opt.scalers().iter().map(|s| s.scale()).collect::<Vec<_>>(), [65_536.0, 32_768.0]);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[0.25])).unwrap();
    step.backward_of::<U1>(&linear(&model, &[0.125])).unwrap();
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!(values(&model.inner().0), [0.625]);
}

/// Lightning#9330: clipping is done on true gradients, and on those that the optimizer uses.
#[test]
fn clipping_by_norm_limits_the_true_gradient() {
    fn check<L: OptLevel>() {
        let (model, mut opt) = probe::<L>(&[0.0, 0.0], 1024.0, 1.0);
        let mut step = opt.begin();
        step.backward(&linear(&model, &[3.0, 4.0])).unwrap();
        let mut grads = step.unscale().unwrap();
        assert_eq!(grads.clip_grad_norm(1.0).unwrap().value(), 5.0);
        assert!((grads.grad_norm().unwrap().value() - 1.0).abs() < 1e-6);
        assert!(grads.step().unwrap().is_applied());
        let update = values(opt.master_params().next().unwrap().1);
        assert!((update[0] + 0.6).abs() < 1e-6 && (update[1] + 0.8).abs() < 1e-6, "{update:?}");
    }
    check::<O0>();
    check::<O1<f16>>();
    check::<O2<f16>>();
    check::<O2<bf16>>();
}

#[test]
fn small_gradients_are_not_clipped() {
    let (model, mut opt) = probe::<O2>(&[0.0, 0.0], 1024.0, 1.0);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[3.0, 4.0])).unwrap();
    let mut grads = step.unscale().unwrap();
    assert_eq!(grads.clip_grad_norm(5.5).unwrap().value(), 5.0);
    assert!(grads.step().unwrap().is_applied());
    assert_eq!(values(&model.inner().0), [-3.0, -4.0]);
}

/// pytorch#46849, burn#5699: squares of large gradients overflow FP32, and those of fp16 earlier.
#[test]
fn norm_of_large_gradients_is_finite() {
    let (model, mut opt) = probe::<O0>(&[0.0; 100], 2.0, 1.0);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[1e20; 100])).unwrap();
    let mut grads = step.unscale().unwrap();
    let norm = grads.clip_grad_norm(1.0).unwrap().value();
    assert!((norm / 1e21 - 1.0).abs() < 1e-5, "{norm:e}");
    assert!(grads.step().unwrap().is_applied());
    assert!(values(&model.inner().0).iter().all(|w| (w + 0.1).abs() < 1e-6));
    let (model, mut opt) = probe::<O2>(&[0.0], 1.0, 1.0);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[300.0])).unwrap();
    assert_eq!(step.unscale().unwrap().grad_norm().unwrap().value(), 300.0);
}

#[test]
fn clipping_by_value_clamps_each_element() {
    let (model, mut opt) = probe::<O2>(&[0.0; 3], 1024.0, 1.0);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[-3.0, 0.25, 8.0])).unwrap();
    let mut grads = step.unscale().unwrap();
    grads.clip_grad_value(0.5).unwrap();
    assert_eq!(grads.grad_norm().unwrap().value(), 0.75);
    assert!(grads.step().unwrap().is_applied());
    assert_eq!(values(&model.inner().0), [0.5, -0.25, -0.5]);
}

#[test]
fn clipping_twice_clips_what_the_first_left() {
    let (model, mut opt) = probe::<O2>(&[0.0, 0.0], 1024.0, 1.0);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[3.0, 4.0])).unwrap();
    let mut grads = step.unscale().unwrap();
    grads.clip_grad_norm(1.0).unwrap();
    grads.clip_grad_value(0.7).unwrap();
    let read: Vec<f32> = values(grads.grads().unwrap()[0].1);
    assert!((read[0] - 0.6).abs() < 1e-6 && read[1] == 0.7, "{read:?}");
    assert!(grads.step().unwrap().is_applied());
    drop(model);
}

#[test]
fn clip_limits_that_make_no_sense_are_refused() {
    let (model, mut opt) = probe::<O2>(&[1.0], 1024.0, 1.0);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[1.0])).unwrap();
    let mut grads = step.unscale().unwrap();
    let error = grads.clip_grad_norm(f64::NAN).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`clip_grad_norm` with NaN: the limit must not be negative or NaN"
    );
    let error = grads.clip_grad_value(-1.0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`clip_grad_value` with -1: the limit must not be negative or NaN"
    );
}

/// tch's own `clip_grad_norm` panics without gradients.
#[test]
fn step_without_gradients_changes_nothing() {
    let builder = Amp::<O2>::builder().loss_scale(Dynamic::new().init_scale(1024.0));
    let own = Sgd::new(1.0).momentum(0.9).weight_decay(0.1);
    let (model, mut opt) = builder.build(Net::seeded(1), own).unwrap();
    let before = snapshot(model.variables());
    let stranger = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let mut step = opt.begin();
    step.backward(&stranger.sum(Kind::Float)).unwrap();
    let mut grads = step.unscale().unwrap();
    assert_eq!(grads.clip_grad_norm(1.0).unwrap().value(), 0.0);
    assert!(grads.grads().unwrap().is_empty());
    assert_eq!(grads.step().unwrap(), StepOutcome::NoGradients);
    let step = opt.begin();
    assert_eq!(step.unscale().unwrap().step().unwrap(), StepOutcome::NoGradients);
    assert_eq!(snapshot(model.variables()), before);
    assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (1024.0, 0));
}

/// A masked batch gives a constant loss: an error, and the next step is as if it had not been.
#[test]
fn loss_without_graph_is_refused() {
    let (model, mut opt) = probe::<O2>(&[1.0], 1024.0, 1.0);
    let constant = Tensor::zeros([], (Kind::Float, Device::Cpu));
    let error = opt.backward_step(&constant).unwrap_err();
    assert!(matches!(error, StepError::LossWithoutGraph), "{error}");
    assert!(opt.backward_step(&linear(&model, &[0.5])).unwrap().outcome().is_applied());
    assert_eq!(values(&model.inner().0), [0.5]);
    assert_eq!(opt.scalers()[0].unskipped(), 1);
}

#[test]
fn loss_that_is_no_scalar_is_refused() {
    let (model, mut opt) = probe::<O2>(&[1.0, 2.0], 1024.0, 1.0);
    let error = opt.backward_step(&(&model.inner().0 * 1.0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the loss has shape [2]: reduce it to a scalar, e.g. with `.mean(Kind::Float)`"
    );
}

/// The scale times a 16-bit loss would overflow: 2 · 65536 in fp16.
#[test]
fn sixteen_bit_loss_is_scaled_in_fp32() {
    let (model, mut opt) = probe::<O2>(&[2.0], 65_536.0, 1.0);
    let loss = model.inner().0.sum(Kind::Half);
    let mut step = opt.begin();
    let scaled = step.scale_loss(&loss).unwrap();
    assert_eq!(scaled.tensor().kind(), Kind::Float);
    assert_eq!(values(scaled.tensor()), [131_072.0]);
    drop(scaled);
}

#[test]
fn double_loss_keeps_its_precision() {
    let (model, mut opt) = probe::<O0>(&[1.0], 2.0, 1.0);
    let loss = model.inner().0.to_kind(Kind::Double).sum(Kind::Double);
    let mut step = opt.begin();
    assert_eq!(step.scale_loss(&loss).unwrap().tensor().kind(), Kind::Double);
}

/// Gradients that a stray `backward` left behind are no part of the step.
#[test]
fn a_step_starts_clean() {
    let (model, mut opt) = probe::<O2>(&[1.0], 1024.0, 1.0);
    linear(&model, &[100.0]).backward();
    assert!(opt.backward_step(&linear(&model, &[0.5])).unwrap().outcome().is_applied());
    assert_eq!(values(&model.inner().0), [0.5]);
    assert!(!model.inner().0.grad().defined());
}

#[test]
fn step_given_up_leaves_no_trace() {
    let (model, mut opt) = probe::<O2>(&[1.0], 1024.0, 1.0);
    let mut step = opt.begin();
    step.backward(&linear(&model, &[1.0])).unwrap();
    drop(step);
    assert_eq!(opt.scalers()[0].unskipped(), 0);
    assert!(opt.backward_step(&linear(&model, &[0.25])).unwrap().outcome().is_applied());
    assert_eq!(values(&model.inner().0), [0.75]);
}

#[test]
fn layouts_do_not_matter() {
    let run = |transposed: bool| {
        let store = VarStore::new(Device::Cpu);
        let init = Tensor::arange(6, (Kind::Float, Device::Cpu)).reshape([2, 3]);
        let w = store.root().var_copy("w", &init);
        if transposed {
            w.shallow_clone().set_data(&init.transpose(0, 1).contiguous().transpose(0, 1));
        }
        let builder = Amp::<O2<bf16>>::builder().loss_scale(Static::new(4.0));
        let own = Sgd::new(0.5).momentum(0.9);
        let (_model, mut opt) = builder.build((store, ()), own).unwrap();
        for _ in 0..3 {
            let loss = (w.to_kind(Kind::Float) * &init).sum(Kind::Float);
            assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        }
        (bits(&w), bits(opt.master_params().next().unwrap().1))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn empty_parameters_are_legal() {
    let store = VarStore::new(Device::Cpu);
    let empty = store.root().zeros("empty", &[0, 3]);
    let w = store.root().ones("w", &[1]);
    let (_model, mut opt) =
        Amp::<O2>::builder().build((store, ()), Sgd::new(1.0).momentum(0.9)).unwrap();
    let loss = (empty.to_kind(Kind::Float).sum(Kind::Float) + w.to_kind(Kind::Float) * 0.5)
        .sum(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    assert_eq!(values(&w), [0.5]);
}

#[test]
fn sparse_embedding_gradients_are_taken() {
    let store = VarStore::new(Device::Cpu);
    let config =
        nn::EmbeddingConfig { sparse: true, ws_init: nn::Init::Const(1.0), ..Default::default() };
    let table = nn::embedding(store.root() / "table", 4, 2, config);
    let (model, mut opt) = Amp::<O0>::builder()
        .loss_scale(Static::new(8.0))
        .build((store, table), Sgd::new(0.5))
        .unwrap();
    let ids = Tensor::from_slice(&[1i64, 1, 3]);
    let loss = model.forward_t(&ids, true).sum(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    let table = values(&model.variables()["table.weight"]);
    assert_eq!(table, [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.5]);
}

/// With a step of two passes, the tied weight's gradient is the sum over its uses.
#[test]
fn tied_weights_have_one_master() {
    let store = VarStore::new(Device::Cpu);
    let w = store.root().ones("embedding", &[1]);
    let name = "head".to_owned();
    store.variables_.lock().unwrap().named_variables.insert(name, w.shallow_clone());
    let builder = Amp::<O2>::builder().loss_scale(Static::new(1024.0));
    let (model, mut opt) = builder.build((store, ()), Sgd::new(0.1)).unwrap();
    let loss = (&w + &w).to_kind(Kind::Float).sum(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    let masters: Vec<_> = opt.master_params().map(|(_, m)| values(m)).collect();
    assert_eq!(masters, [[1.0 - 0.1f32 * 2.0]]);
    let both = ["embedding", "head"].map(|name| model.variables()[name].data_ptr());
    assert_eq!(both[0], both[1]);
    assert_eq!(values(&w), [f16::from_f32(0.8).to_f32()]);
}

#[test]
fn backward_steps_add_up_to_training() {
    let (model, mut opt) = Amp::<O1<bf16>>::builder().build(Net::seeded(4), Sgd::new(0.1)).unwrap();
    let mut losses = Vec::new();
    for (xs, ys) in batches(30) {
        let loss = mse(&model.forward_t(&xs, true), &ys);
        losses.push(loss.double_value(&[]));
        let _ = opt.backward_step(&loss).unwrap();
    }
    assert!(losses[29] < 0.8 * losses[0], "{losses:?}");
}
