//! A step with non-finite gradients is skipped: every bit but the scale's stays.

mod common;

use std::num::NonZeroU32;

use common::{Net, batches, bits, mse, snapshot, values};
use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{
    Amp, AmpOptimizer, Dynamic, O0, O1, O2, O3, OptLevel, Optimizer, Static, StepError,
    StepOutcome,
    optim::{Adagrad, Adam, AdamW, Lamb, NovoGrad, Sgd},
    step::NonFinite,
};
use typenum::{U1, U2};

/// All that a step can change, bit by bit.
fn state<L: OptLevel, O: Optimizer>(
    variables: std::collections::HashMap<String, Tensor>,
    opt: &AmpOptimizer<L, O>,
) -> (Vec<(String, common::Bits)>, Vec<common::Bits>) {
    (snapshot(variables), opt.master_params().map(|(_, master)| bits(master)).collect())
}

/// Trains, skips one step, goes on; and trains again without that step. Both end alike, so the
/// optimizer's own state was untouched too.
fn skip_leaves_no_trace<L: OptLevel, O: Optimizer>(optimizer: impl Fn(&VarStore) -> O, bad: f64) {
    let run = |with_bad_step: bool| {
        let (store, net) = Net::seeded(2);
        let optimizer = optimizer(&store);
        let builder = Amp::<L>::builder().loss_scale(Static::new(64.0));
        let (model, mut opt) = builder.build((store, net), optimizer).unwrap();
        for (n, (xs, ys)) in batches(6).iter().enumerate() {
            if n == 3 && with_bad_step {
                let before = state(model.variables(), &opt);
                let loss = mse(&model.forward_t(&(xs * bad), true), ys);
                let outcome = opt.backward_step(&loss).unwrap().outcome();
                assert!(matches!(outcome, StepOutcome::Skipped { .. }), "{outcome:?}");
                assert_eq!(state(model.variables(), &opt), before);
            }
            let loss = mse(&model.forward_t(xs, true), ys);
            assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        }
        state(model.variables(), &opt)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn skip_leaves_no_trace_at_any_level() {
    skip_leaves_no_trace::<O0, _>(|_| Adam::new(1e-3), f64::INFINITY);
    skip_leaves_no_trace::<O1<f16>, _>(|_| Adam::new(1e-3), f64::NAN);
    skip_leaves_no_trace::<O1<bf16>, _>(|_| AdamW::new(1e-3), f64::INFINITY);
    skip_leaves_no_trace::<O2<f16>, _>(|_| Adam::new(1e-3), 1e5);
    skip_leaves_no_trace::<O2<bf16>, _>(|_| Sgd::new(1e-2).momentum(0.9), f64::NAN);
    skip_leaves_no_trace::<O3<f16>, _>(|_| Sgd::new(1e-2).momentum(0.9), 1e5);
    skip_leaves_no_trace::<O3<bf16>, _>(|_| AdamW::new(1e-3), f64::INFINITY);
    skip_leaves_no_trace::<O2<f16>, _>(|_| Adagrad::new(1e-3), f64::NAN);
    skip_leaves_no_trace::<O2<bf16>, _>(|_| NovoGrad::new(1e-3), f64::INFINITY);
    skip_leaves_no_trace::<O3<bf16>, _>(|_| Lamb::new(1e-3), f64::NAN);
}

#[test]
fn skip_leaves_no_trace_in_a_tch_optimizer() {
    let adam = |store: &VarStore| nn::Adam::default().build(store, 1e-3).unwrap();
    skip_leaves_no_trace::<O2<bf16>, _>(adam, f64::NAN);
    skip_leaves_no_trace::<O1<bf16>, _>(adam, f64::INFINITY);
    skip_leaves_no_trace::<O0, _>(adam, f64::INFINITY);
}

/// pytorch#88474: the forward pass of a skipped step leaves NaN in the running statistics.
#[test]
fn batch_norm_statistics_are_restored() {
    let store = VarStore::new(Device::Cpu);
    let linear = nn::linear(store.root() / "fc", 2, 2, Default::default());
    let norm = nn::batch_norm1d(store.root() / "bn", 2, Default::default());
    let net = nn::seq_t().add(linear).add(norm);
    let (model, mut opt) = Amp::<O2>::builder().build((store, net), Sgd::new(0.1)).unwrap();
    let options = (Kind::Float, Device::Cpu);
    let bad = Tensor::full([4, 2], 1e5, options);
    let loss = model.forward_t(&bad, true).square().mean(Kind::Float);
    assert!(!values(&model.variables()["bn.running_mean"])[0].is_finite());
    let outcome = opt.backward_step(&loss).unwrap().outcome();
    assert!(matches!(outcome, StepOutcome::Skipped { .. }));
    assert_eq!(values(&model.variables()["bn.running_mean"]), [0.0, 0.0]);
    assert_eq!(values(&model.variables()["bn.running_var"]), [1.0, 1.0]);
}

#[test]
fn forward_passes_without_gradients_keep_their_statistics() {
    let (model, mut opt) = Amp::<O2<bf16>>::builder().build(Net::seeded(2), Sgd::new(0.1)).unwrap();
    let (xs, ys) = &batches(1)[0];
    let _ = tch::no_grad(|| model.forward_t(xs, true));
    let calibrated = bits(&model.variables()["norm.running_mean"]);
    let loss = mse(&model.forward_t(&(xs * f64::NAN), true), ys);
    let _ = opt.backward_step(&loss).unwrap();
    assert_eq!(bits(&model.variables()["norm.running_mean"]), calibrated);
}

/// A static scale that overflows is never changed (NVIDIA/apex#179: there the weights become NaN).
#[test]
fn static_scale_skips_and_stays() {
    let (store, module) = common::weights(&[1.0]);
    let builder = Amp::<O2>::builder().loss_scale(Static::new(128.0));
    let (model, mut opt) = builder.build((store, module), Sgd::new(0.1)).unwrap();
    let loss = (&model.inner().0.to_kind(Kind::Float) * 1000.0).sum(Kind::Float);
    let StepOutcome::Skipped { overflows } = opt.backward_step(&loss).unwrap().outcome() else {
        panic!("fp16(128000) is infinite");
    };
    assert_eq!(overflows[0].to_string(), "Inf in the gradient of `w` (loss 0, scale now 128)");
    assert_eq!(values(&model.inner().0), [1.0]);
    assert_eq!(opt.scalers()[0].scale(), 128.0);
}

/// NVIDIA/apex#318: the first steps overflow, and nothing but the scale moves.
#[test]
fn first_overflow_halves_the_scale_only() {
    let (store, module) = common::weights(&[1.0]);
    let (model, mut opt) = Amp::<O2>::builder().build((store, module), Adam::new(0.1)).unwrap();
    let loss = || model.inner().0.to_kind(Kind::Float).sum(Kind::Float);
    // The gradient is fp16(65536) = inf.
    let outcome = opt.backward_step(&loss()).unwrap().outcome();
    assert!(matches!(outcome, StepOutcome::Skipped { .. }));
    assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (32_768.0, 0));
    assert_eq!(values(&model.inner().0), [1.0]);
    assert!(opt.backward_step(&loss()).unwrap().outcome().is_applied());
    assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (32_768.0, 1));
    // Adam's first step moves by lr, whatever the gradient.
    let master = values(opt.master_params().next().unwrap().1)[0];
    assert!((master - 0.9).abs() < 1e-6);
}

/// tensorflow#38357: some gradients need a scale below 1.
#[test]
fn scale_goes_below_one_where_it_must() {
    let (store, module) = common::weights(&[1.0]);
    let (model, mut opt) = Amp::<O2>::builder().build((store, module), Sgd::new(1e-6)).unwrap();
    for n in 0..18 {
        let loss = (model.inner().0.to_kind(Kind::Float) * 100_000.0).sum(Kind::Float);
        let outcome = opt.backward_step(&loss).unwrap().outcome();
        assert_eq!(outcome.is_applied(), n == 17, "step {n}");
    }
    assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (0.5, 1));
    // fp16(50000) is 49984, and the true gradient 99968.
    let master = values(opt.master_params().next().unwrap().1)[0];
    assert!((f64::from(master) - (1.0 - 1e-6 * 99_968.0)).abs() < 1e-6);
}

/// deepspeed#1958, fairseq#2488: NaN from the data skips for ever; the limit names the culprit.
#[test]
fn skip_limit_names_the_parameter() {
    let store = VarStore::new(Device::Cpu);
    let encoder = store.root().sub("enc").ones("w", &[2]);
    let head = store.root().sub("head").ones("w", &[2]);
    let scale = Dynamic::new().min_loss_scale(1.0).skip_limit(NonZeroU32::new(20).unwrap());
    let builder = Amp::<O2>::builder().loss_scale(scale);
    let (_model, mut opt) = builder.build((store, ()), Sgd::new(0.1)).unwrap();
    for n in 1..=20 {
        let loss = (&encoder + &head * f64::NAN).sum(Kind::Float);
        match opt.backward_step(&loss) {
            Ok(outcome) => {
                assert!(n < 20 && matches!(outcome.outcome(), StepOutcome::Skipped { .. }));
            }
            Err(StepError::SkipLimit { in_a_row, overflow }) => {
                assert_eq!((n, in_a_row), (20, 20));
                assert_eq!(
                    (overflow.parameter.as_str(), overflow.kind),
                    ("head.w", NonFinite::NaN)
                );
                assert_eq!(overflow.new_scale, 1.0);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(values(&head), [1.0, 1.0]);
    let good = (&encoder.to_kind(Kind::Float) * 0.5 + &head).sum(Kind::Float);
    assert!(opt.backward_step(&good).unwrap().outcome().is_applied());
}

/// NVIDIA/apex#56: two losses with a scale each; one overflow skips the step, and halves its own
/// scale only.
#[test]
fn one_of_two_losses_overflows() {
    let (store, module) = common::weights(&[1.0]);
    let builder =
        Amp::<O2>::builder().num_losses::<U2>().loss_scale(Dynamic::new().init_scale(1024.0));
    let (model, mut opt) = builder.build((store, module), Sgd::new(1.0)).unwrap();
    let loss = |c: f64| (model.inner().0.to_kind(Kind::Float) * c).sum(Kind::Float);
    let mut step = opt.begin();
    step.backward(&loss(0.25)).unwrap();
    step.backward_of::<U1>(&loss(1e6)).unwrap();
    let StepOutcome::Skipped { overflows } = step.unscale().unwrap().step().unwrap() else {
        panic!("loss 1 overflows");
    };
    assert_eq!(overflows.iter().map(|o| o.loss).collect::<Vec<_>>(), [1]);
    let scales = |opt: &AmpOptimizer<O2, Sgd, U2>| {
        opt.scalers().iter().map(|s| (s.scale(), s.unskipped())).collect::<Vec<_>>()
    };
    assert_eq!(scales(&opt), [(1024.0, 1), (512.0, 0)]);
    assert_eq!(values(&model.inner().0), [1.0]);
    let mut step = opt.begin();
    step.backward(&loss(0.25)).unwrap();
    step.backward_of::<U1>(&loss(0.25)).unwrap();
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
    assert_eq!(scales(&opt), [(1024.0, 2), (512.0, 1)]);
    assert_eq!(values(&model.inner().0), [0.5]);
}

/// espnet#2362: the caller gives an iteration up after it saw the overflow.
#[test]
fn step_given_up_after_an_overflow_is_a_skipped_step() {
    let (store, module) = common::weights(&[1.0]);
    let (model, mut opt) = Amp::<O2>::builder().build((store, module), Sgd::new(1.0)).unwrap();
    let loss = |c: f64| (model.inner().0.to_kind(Kind::Float) * c).sum(Kind::Float);
    let mut step = opt.begin();
    step.backward(&loss(1.0)).unwrap();
    let mut grads = step.unscale().unwrap();
    assert_eq!(grads.grad_norm().unwrap().value(), f64::INFINITY);
    drop(grads);
    assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (32_768.0, 0));
    assert!(opt.backward_step(&loss(0.5)).unwrap().outcome().is_applied());
    assert_eq!(values(&model.inner().0), [0.5]);
    assert_eq!(opt.scalers()[0].unskipped(), 1);
}

/// Only `Inf` without NaN counts as an overflow of the scale; both skip.
#[test]
fn outcome_tells_inf_from_nan() {
    let kind = |values: &[f32]| {
        let (store, module) = common::weights(&[1.0, 1.0]);
        let (model, mut opt) =
            Amp::<O1<f16>>::builder().build((store, module), Sgd::new(1.0)).unwrap();
        let loss = (&model.inner().0 * Tensor::from_slice(values)).sum(Kind::Float);
        match opt.backward_step(&loss).unwrap().outcome() {
            StepOutcome::Skipped { overflows } => overflows[0].kind,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind(&[f32::INFINITY, 1.0]), NonFinite::Inf);
    assert_eq!(kind(&[f32::NEG_INFINITY, f32::INFINITY]), NonFinite::Inf);
    assert_eq!(kind(&[f32::INFINITY, f32::NAN]), NonFinite::NaN);
}

/// torch's fused optimizers skip when `found_inf` is 1, and step when two overflows make it 2.
#[test]
fn two_overflows_skip_like_one() {
    let (store, module) = common::weights(&[1.0]);
    let builder =
        Amp::<O2>::builder().num_losses::<U2>().loss_scale(Dynamic::new().init_scale(1024.0));
    let (model, mut opt) = builder.build((store, module), Sgd::new(1.0)).unwrap();
    let loss = || (model.inner().0.to_kind(Kind::Float) * 1e6).sum(Kind::Float);
    let mut step = opt.begin();
    step.backward(&loss()).unwrap();
    step.backward(&loss()).unwrap();
    step.backward_of::<U1>(&loss()).unwrap();
    let StepOutcome::Skipped { overflows } = step.unscale().unwrap().step().unwrap() else {
        panic!("all three overflow");
    };
    assert_eq!(overflows.iter().map(|o| o.loss).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(values(&model.inner().0), [1.0]);
    assert!(opt.scalers().iter().all(|scaler| scaler.scale() == 512.0));
}
