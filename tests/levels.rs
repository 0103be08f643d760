//! Every level, type and optimizer trains, and agrees with FP32 within the type's rounding.

mod common;

use common::{Net, batches, mse, relative_error, snapshot, values};
use half::{bf16, f16};
use tch::{
    Kind, Tensor,
    nn::{self, ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, LowPrecision, O0, O1, O2, O3, OptLevel, Optimizer, StepOutcome,
    optim::{Adagrad, Adam, AdamW, Lamb, NovoGrad, Sgd},
};

const STEPS: usize = 20;

fn train<L: OptLevel, O: Optimizer>(
    optimizer: impl Fn(&VarStore) -> O,
) -> (AmpModel<L, Net>, AmpOptimizer<L, O>, Vec<f64>) {
    let (store, net) = Net::seeded(7);
    let optimizer = optimizer(&store);
    let (model, mut opt) = Amp::<L>::builder().build((store, net), optimizer).unwrap();
    let mut losses = Vec::new();
    // The first steps of a dynamic scale may overflow; they do not count.
    let mut applied = 0;
    let data = batches(STEPS);
    while applied < STEPS {
        let (xs, ys) = &data[applied];
        let loss = mse(&model.forward_t(xs, true), ys);
        match opt.backward_step(&loss).unwrap().outcome() {
            StepOutcome::Applied => {
                losses.push(loss.double_value(&[]));
                applied += 1;
            }
            StepOutcome::Skipped { overflows } => assert_eq!(overflows.len(), 1),
            StepOutcome::NoGradients => panic!("no gradients"),
        }
    }
    (model, opt, losses)
}

/// Relative rounding error of a type: half a unit in the last place.
fn rounding(kind: Kind) -> f64 {
    match kind {
        Kind::Half => 2f64.powi(-11),
        Kind::BFloat16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Losses and weights may be off by two roundings for each step that led to them.
fn agrees_with_fp32<L: OptLevel, O: Optimizer>(optimizer: impl Fn(&VarStore) -> O) {
    let (reference, _, expected) = train::<O0, O>(&optimizer);
    let (model, opt, losses) = train::<L, O>(&optimizer);
    let allowed = 2.0 * STEPS as f64 * rounding(L::LOW_PRECISION.unwrap_or(Kind::Float));
    for (actual, expected) in losses.iter().zip(&expected) {
        let error = (actual - expected).abs() / expected;
        assert!(error <= allowed, "{}: loss is off by {error:e}", L::DEFAULTS.opt_level);
    }
    let reference = reference.variables();
    for (name, actual) in opt.master_params() {
        let error = relative_error(&values(actual), &values(&reference[name]));
        assert!(error <= allowed, "{}: {name} is off by {error:e}", L::DEFAULTS.opt_level);
    }
    for (name, tensor) in model.variables() {
        let finite = values(&tensor).iter().all(|x| x.is_finite());
        assert!(finite, "{name} is not finite");
    }
    assert!(losses[STEPS - 1] < losses[0], "{losses:?}");
}

macro_rules! levels_by_optimizers {
    ($($name:ident: $optimizer:expr;)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn o1_f16() { agrees_with_fp32::<O1<f16>, _>($optimizer); }
            #[test]
            fn o1_bf16() { agrees_with_fp32::<O1<bf16>, _>($optimizer); }
            #[test]
            fn o2_f16() { agrees_with_fp32::<O2<f16>, _>($optimizer); }
            #[test]
            fn o2_bf16() { agrees_with_fp32::<O2<bf16>, _>($optimizer); }
            #[test]
            fn o3_f16() { agrees_with_fp32::<O3<f16>, _>($optimizer); }
            #[test]
            fn o3_bf16() { agrees_with_fp32::<O3<bf16>, _>($optimizer); }
        }
    )* };
}

levels_by_optimizers! {
    sgd: |_: &VarStore| Sgd::new(0.05).momentum(0.9);
    adam: |_: &VarStore| Adam::new(2e-3);
    adamw: |_: &VarStore| AdamW::new(2e-3);
    adagrad: |_: &VarStore| Adagrad::new(1e-2);
    novograd: |_: &VarStore| NovoGrad::new(1e-2).betas(0.9, 0.5);
    lamb: |_: &VarStore| Lamb::new(1e-2);
    tch_sgd: |store: &VarStore| nn::sgd(0.9, 0.0, 0.0, false).build(store, 0.05).unwrap();
    tch_adam: |store: &VarStore| nn::Adam::default().build(store, 2e-3).unwrap();
}

/// libtorch's Adam divides by zero on 16-bit weights: 1e-8 is no fp16 number.
#[test]
fn tch_adam_survives_a_zero_gradient_without_masters() {
    let (store, module) = common::weights(&[1.0, 1.0]);
    let adam = nn::Adam::default().build(&store, 0.1).unwrap();
    let (model, mut opt) = Amp::<O3<f16>>::builder().build((store, module), adam).unwrap();
    let loss = (&model.inner().0 * Tensor::from_slice(&[0f32, 1.0])).sum(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    assert_eq!(values(&model.inner().0), [1.0, f16::from_f32(0.9).to_f32()]);
}

/// `enabled(false)` is plain `tch`: the same bits as a loop without this crate.
#[test]
fn disabled_is_plain_tch() {
    let data = batches(STEPS);
    let (store, net) = Net::seeded(7);
    let mut opt = nn::Adam::default().build(&store, 1e-3).unwrap();
    for (xs, ys) in &data {
        opt.backward_step(&mse(&net.forward_t(xs, true), ys));
    }
    let (amp_store, amp_net) = Net::seeded(7);
    let amp_opt = nn::Adam::default().build(&amp_store, 1e-3).unwrap();
    let builder = Amp::<O2>::builder().enabled(false);
    let (model, mut amp_opt) = builder.build((amp_store, amp_net), amp_opt).unwrap();
    for (xs, ys) in &data {
        let _ = amp_opt.backward_step(&mse(&model.forward_t(xs, true), ys)).unwrap();
    }
    assert_eq!(snapshot(model.variables()), snapshot(store.variables()));
    assert_eq!(amp_opt.scalers()[0].scale(), 1.0);
}

/// `O0` with its default scale is plain `tch` too, non-finite gradients included.
#[test]
fn o0_is_plain_tch() {
    let (store, module) = common::weights(&[1.0]);
    let (model, mut opt) = Amp::<O0>::builder().build((store, module), Sgd::new(1.0)).unwrap();
    let loss = (&model.inner().0 * f64::INFINITY).sum(Kind::Float);
    assert_eq!(opt.backward_step(&loss).unwrap().outcome(), StepOutcome::Applied);
    assert_eq!(values(&model.inner().0), [f32::NEG_INFINITY]);
    let (store, module) = common::weights(&[1.0]);
    let (model, mut opt) = Amp::<O0>::builder().build((store, module), Sgd::new(1.0)).unwrap();
    let mut step = opt.begin();
    for _ in 0..2 {
        step.backward(&(&model.inner().0 * f64::INFINITY).sum(Kind::Float)).unwrap();
    }
    assert_eq!(step.unscale().unwrap().step().unwrap(), StepOutcome::Applied);
}

/// Two models at different levels in turn give what each gives alone.
#[test]
fn models_at_different_levels_do_not_disturb_each_other() {
    fn alone<L: OptLevel>() -> Vec<(String, common::Bits)> {
        snapshot(train::<L, Sgd>(|_| Sgd::new(0.05)).0.variables())
    }
    let expected = (alone::<O1<bf16>>(), alone::<O2<bf16>>());
    let (first, mut first_opt) =
        Amp::<O1<bf16>>::builder().build(Net::seeded(7), Sgd::new(0.05)).unwrap();
    let (second, mut second_opt) =
        Amp::<O2<bf16>>::builder().build(Net::seeded(7), Sgd::new(0.05)).unwrap();
    for (xs, ys) in &batches(STEPS) {
        let one = mse(&first.forward_t(xs, true), ys);
        let two = mse(&second.forward_t(xs, true), ys);
        let _ = second_opt.backward_step(&two).unwrap();
        let _ = first_opt.backward_step(&one).unwrap();
    }
    assert_eq!((snapshot(first.variables()), snapshot(second.variables())), expected);
}

/// The weights, inputs and outputs of each level have the types that the level's table says.
#[test]
fn types_are_what_the_level_says() {
    fn check<L: OptLevel>(linear: Kind, norm: Kind) {
        let (model, _) = Amp::<L>::builder().build(Net::seeded(1), Sgd::new(0.1)).unwrap();
        let variables = model.variables();
        let level = L::DEFAULTS.opt_level;
        for name in ["first.weight", "last.weight", "last.bias"] {
            assert_eq!(variables[name].kind(), linear, "{name} at {level}");
        }
        for name in ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"] {
            assert_eq!(variables[name].kind(), norm, "{name} at {level}");
        }
        let xs = Tensor::ones([2, Net::INPUTS], (Kind::Float, tch::Device::Cpu));
        assert_eq!(model.forward_t(&xs, true).kind(), Kind::Float, "{level}");
        assert_eq!(model.cast_input(&xs).kind(), linear, "{level}");
    }
    check::<O0>(Kind::Float, Kind::Float);
    check::<O1<f16>>(Kind::Float, Kind::Float);
    check::<O1<bf16>>(Kind::Float, Kind::Float);
    check::<O2<f16>>(f16::KIND, Kind::Float);
    check::<O2<bf16>>(bf16::KIND, Kind::Float);
    check::<O3<f16>>(f16::KIND, f16::KIND);
    check::<O3<bf16>>(bf16::KIND, bf16::KIND);
}

/// At `O1` the forward pass is an autocast region; without one the output would be FP32's.
#[test]
fn o1_casts_around_the_operations_of_the_forward_pass() {
    let (_store, net) = Net::seeded(1);
    let xs = common::noise(5, &[8, Net::INPUTS]);
    let plain = values(&net.forward_t(&xs, false));
    let expected = {
        let _region = tch_amp::autocast::enter::<bf16>(tch::Device::Cpu).unwrap();
        values(&net.forward_t(&xs, false))
    };
    assert_ne!(expected, plain);
    let model = Amp::<O1<bf16>>::builder().build_model(Net::seeded(1)).unwrap();
    assert_eq!(values(&model.forward_t(&xs, false)), expected);
    let uncast = Amp::<O1<bf16>>::builder().patch_torch_functions(false);
    let model = uncast.build_model(Net::seeded(1)).unwrap();
    assert_eq!(values(&model.forward_t(&xs, false)), plain);
}

/// With `enabled(false)` no level casts, scales or skips.
#[test]
fn disabled_levels_cast_nothing() {
    fn check<L: OptLevel>() {
        let built = common::weights(&[1.0]);
        let builder = Amp::<L>::builder().enabled(false).cast_model_outputs::<f16>();
        let (model, mut opt) = builder.build(built, Sgd::new(1.0)).unwrap();
        let (w, level) = (model.inner().0.shallow_clone(), L::DEFAULTS.opt_level);
        assert_eq!(w.kind(), Kind::Float, "{level}");
        assert!(model.autocast().is_none(), "{level}");
        let double = Tensor::from_slice(&[0.5f64]);
        assert_eq!(model.cast_input(&double).kind(), Kind::Double, "{level}");
        assert_eq!(model.forward_t(&double, true).kind(), Kind::Double, "{level}");
        assert_eq!(opt.scalers()[0].scale(), 1.0, "{level}");
        let outcome = opt.backward_step(&(&w * f64::INFINITY).sum(Kind::Float)).unwrap().outcome();
        assert_eq!(outcome, StepOutcome::Applied, "{level}");
        assert_eq!(values(&w), [f32::NEG_INFINITY], "{level}");
    }
    check::<O0>();
    check::<O1<f16>>();
    check::<O2<bf16>>();
    check::<O3<f16>>();
}
