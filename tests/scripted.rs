//! TorchScript modules at every level.

mod common;

use common::{batches, bits, mse, values};
use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor, TrainableCModule,
    nn::{ModuleT, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, BuildError, O0, O1, O2, O3, OptLevel, Static, StepOutcome,
    optim::Sgd,
    option::{AllowsKeepBatchnormFp32, AllowsKeepFp32},
};

const NORM: [&str; 2] = ["norm_weight", "norm_bias"];
const STEPS: usize = 10;

fn scripted() -> (VarStore, TrainableCModule) {
    let store = VarStore::new(Device::Cpu);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/linear_norm_linear.pt");
    let module = TrainableCModule::load(file, store.root()).unwrap();
    (store, module)
}

/// The mean that the module's batch norm has seen.
fn running_mean<L: OptLevel>(model: &AmpModel<L, TrainableCModule>) -> Tensor {
    model.inner().method_ts("running_mean", &[Tensor::new()]).unwrap().copy()
}

/// Trains, and returns the losses.
fn train<L: OptLevel>(
    model: &AmpModel<L, TrainableCModule>,
    opt: &mut AmpOptimizer<L, Sgd>,
) -> Vec<f64> {
    let before = values(&running_mean(model));
    let losses = batches(STEPS).into_iter().map(|(xs, ys)| {
        let loss = mse(&model.forward_t(&xs, true), &ys);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        loss.double_value(&[])
    });
    let losses = losses.collect();
    assert_ne!(values(&running_mean(model)), before);
    assert_eq!(running_mean(model).kind(), Kind::Float);
    let ys = tch::no_grad(|| model.forward_t(&batches(1)[0].0, true));
    assert_eq!(ys.kind(), Kind::Float);
    losses
}

fn plain<L: OptLevel>() -> Vec<f64> {
    let builder = Amp::<L>::builder().loss_scale(Static::new(8.0));
    let (model, mut opt) = builder.build(scripted(), Sgd::new(0.05)).unwrap();
    train(&model, &mut opt)
}

fn cast<L: OptLevel + AllowsKeepFp32 + AllowsKeepBatchnormFp32>() -> Vec<f64> {
    let builder = Amp::<L>::builder().loss_scale(Static::new(8.0));
    let builder = builder.keep_batchnorm_fp32(false).keep_fp32(NORM);
    let (model, mut opt) = builder.build(scripted(), Sgd::new(0.05)).unwrap();
    let variables = model.variables();
    assert_eq!(variables["first_weight"].kind(), L::LOW_PRECISION.unwrap());
    for name in NORM {
        assert_eq!(variables[name].kind(), Kind::Float);
    }
    train(&model, &mut opt)
}

/// Losses may be off by two roundings for each step that led to them.
fn agree(losses: &[f64], expected: &[f64], rounding: f64) {
    for (loss, expected) in losses.iter().zip(expected) {
        let error = (loss - expected).abs() / expected;
        assert!(error < 2.0 * STEPS as f64 * rounding, "off by {error:e}");
    }
}

#[test]
fn a_scripted_module_trains_at_every_level() {
    let expected = plain::<O0>();
    assert!(expected[STEPS - 1] < 0.9 * expected[0], "{expected:?}");
    let (of_f16, of_bf16) = (2f64.powi(-11), 2f64.powi(-8));
    agree(&plain::<O1<f16>>(), &expected, of_f16);
    agree(&plain::<O1<bf16>>(), &expected, of_bf16);
    agree(&cast::<O2<f16>>(), &expected, of_f16);
    agree(&cast::<O2<bf16>>(), &expected, of_bf16);
    agree(&cast::<O3<f16>>(), &expected, of_f16);
    agree(&cast::<O3<bf16>>(), &expected, of_bf16);
}

#[test]
fn the_operations_of_a_scripted_module_are_cast_at_o1() {
    let builder = Amp::<O1<bf16>>::builder().cast_model_outputs::<bf16>();
    let model = builder.build_model(scripted()).unwrap();
    let (xs, _) = &batches(1)[0];
    for _ in 0..4 {
        assert_eq!(model.run(|module| module.forward_t(xs, true)).kind(), Kind::BFloat16);
    }
    assert_eq!(model.inner().forward_t(xs, true).kind(), Kind::Float);
}

#[test]
fn batch_norm_of_a_scripted_module_cannot_be_kept_in_fp32_unseen() {
    let error = Amp::<O2<bf16>>::builder().build(scripted(), Sgd::new(0.05)).unwrap_err();
    assert!(matches!(error, BuildError::ScriptedBatchNorm), "{error}");
    let builder = Amp::<O3<bf16>>::builder().keep_batchnorm_fp32(true);
    let error = builder.build_model(scripted()).unwrap_err();
    assert!(matches!(error, BuildError::ScriptedBatchNorm), "{error}");
    let words = error.to_string();
    assert!(words.contains("keep_batchnorm_fp32(false)") && words.contains("keep_fp32"), "{words}");
}

#[test]
fn a_scripted_module_that_is_not_enabled_is_left_alone() {
    let model = Amp::<O2<bf16>>::builder().enabled(false).build_model(scripted()).unwrap();
    assert_eq!(model.variables()["first_weight"].kind(), Kind::Float);
}

#[test]
fn a_skipped_step_restores_no_scripted_statistics() {
    let (model, mut opt) = Amp::<O1<bf16>>::builder().build(scripted(), Sgd::new(0.05)).unwrap();
    let (xs, ys) = &batches(1)[0];
    let weight = bits(&model.variables()["first_weight"]);
    let mean = bits(&running_mean(&model));
    let loss = mse(&model.forward_t(xs, true), ys) * f64::INFINITY;
    let outcome = opt.backward_step(&loss).unwrap().outcome();
    assert!(matches!(outcome, StepOutcome::Skipped { .. }));
    assert_eq!(bits(&model.variables()["first_weight"]), weight);
    assert_ne!(bits(&running_mean(&model)), mean);
}
