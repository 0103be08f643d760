//! Unscaling: values, non-finite elements wherever they are, and sparse gradients.

use half::f16;
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, VarStore},
};
use tch_amp::{Amp, O0, O2, O3, OptLevel, Static, StepOutcome, optim::Sgd, step::NonFinite};

use crate::common::values;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Where a gradient of 20 × 20 is read from: the whole parameter, its transpose, or a part.
const VIEWS: [fn(&Tensor) -> Tensor; 3] =
    [Tensor::shallow_clone, Tensor::tr, |whole| whole.narrow(1, 0, 5)];

/// Trains ten parameters of 20 × 20, half of them in FP32, with the gradient 1 everywhere but in
/// the element [2, 2] of one of them, and a scale of 4.
fn step_with(bad: Option<(usize, f64)>, view: fn(&Tensor) -> Tensor) -> StepOutcome {
    let store = VarStore::new(Device::Cpu);
    let make = |n: i64| {
        let group = if n % 2 == 0 { "full" } else { "low" };
        store.root().sub(group).zeros(&n.to_string(), &[20, 20])
    };
    let params: Vec<_> = (0..10).map(make).collect();
    let builder = Amp::<O2<f16>>::builder().keep_fp32(["full"]).loss_scale(Static::new(4.0));
    let (_model, mut opt) = builder.build((store, ()), Sgd::new(1.0)).unwrap();
    let gradient = |n: usize| {
        let ones = Tensor::ones([20, 20], FLOAT);
        if let Some((_, value)) = bad.filter(|(index, _)| *index == n) {
            let _ = ones.get(2).get(2).fill_(value);
        }
        view(&ones)
    };
    let products = params
        .iter()
        .enumerate()
        .map(|(n, param)| (view(&param.to_kind(Kind::Float)) * gradient(n)).sum(Kind::Float));
    let loss = products.reduce(|a, b| a + b).unwrap();
    let mut step = opt.begin();
    let scaled = step.scale_loss(&loss).unwrap();
    scaled.backward().unwrap();
    let mut step = step.unscale().unwrap();
    if bad.is_none() {
        for (_, grad) in step.grads().unwrap() {
            let expected = view(&Tensor::ones([20, 20], FLOAT));
            assert_eq!(values(&view(grad)), values(&expected));
            assert_eq!(grad.sum(Kind::Float).double_value(&[]), expected.numel() as f64);
        }
    }
    step.step().unwrap()
}

/// test_grad_scaling_unscale: finite gradients are divided, whatever their layout and type.
#[test]
fn finite_gradients_are_divided_by_the_scale() {
    for view in VIEWS {
        assert!(step_with(None, view).is_applied());
    }
}

/// test_grad_scaling_unscale, its "perfect storm" of types and views included.
#[test]
fn one_bad_element_is_found_in_any_gradient() {
    for view in VIEWS {
        for n in 0..10 {
            for (value, kind) in [
                (f64::INFINITY, NonFinite::Inf),
                (f64::NEG_INFINITY, NonFinite::Inf),
                (f64::NAN, NonFinite::NaN),
            ] {
                let outcome = step_with(Some((n, value)), view);
                let StepOutcome::Skipped { overflows } = outcome else {
                    panic!("{value} in gradient {n} was not found");
                };
                let group = if n % 2 == 0 { "full" } else { "low" };
                assert_eq!(overflows[0].parameter, format!("{group}.{n}"));
                assert_eq!(overflows[0].kind, kind);
            }
        }
    }
}

/// One step with a sparse gradient: `values[i]` in row `ids[i]` of a table of four, before scaling.
fn sparse_step<L: OptLevel>(ids: &[i64], gradient: &[f32], scale: f64) -> (Vec<f32>, StepOutcome) {
    let store = VarStore::new(Device::Cpu);
    let config = nn::EmbeddingConfig { sparse: true, ..Default::default() };
    let table = nn::embedding(store.root(), 4, 1, config);
    let builder = Amp::<L>::builder().loss_scale(Static::new(scale));
    let (model, mut opt) = builder.build((store, table), Sgd::new(1.0)).unwrap();
    let rows = model.forward_t(&Tensor::from_slice(ids), true).flatten(0, -1);
    let mut step = opt.begin();
    step.backward(&(rows * Tensor::from_slice(gradient)).sum(Kind::Float)).unwrap();
    let mut step = step.unscale().unwrap();
    let gradient = values(step.grads().unwrap()[0].1);
    (gradient, step.step().unwrap())
}

/// test_grad_scaling_unscale_sparse: 16, 32 and 64 with a scale of 4.
#[test]
fn sparse_gradients_are_divided_by_the_scale() {
    let (gradient, outcome) = sparse_step::<O0>(&[0, 1, 3], &[4.0, 8.0, 16.0], 4.0);
    assert_eq!(gradient, [4.0, 8.0, 0.0, 16.0]);
    assert!(outcome.is_applied());
}

#[test]
fn sparse_gradients_of_one_row_add_up() {
    let (gradient, outcome) = sparse_step::<O0>(&[2, 0, 2], &[4.0, 8.0, 16.0], 4.0);
    assert_eq!(gradient, [8.0, 0.0, 20.0, 0.0]);
    assert!(outcome.is_applied());
}

#[test]
fn bad_elements_of_sparse_gradients_are_found() {
    for (value, kind) in [(f32::INFINITY, NonFinite::Inf), (f32::NAN, NonFinite::NaN)] {
        let (_, outcome) = sparse_step::<O0>(&[0, 1, 3], &[4.0, value, 16.0], 4.0);
        let StepOutcome::Skipped { overflows } = outcome else { panic!("{value} was not found") };
        assert_eq!(overflows[0].kind, kind);
    }
}

/// test_grad_scaling_unscale_sparse: 64000 + 64000 in one row is no FP16 number.
#[test]
fn fp16_values_of_one_row_may_overflow_together() {
    for outcome in [
        sparse_step::<O3<f16>>(&[1, 1], &[64_000.0, 64_000.0], 1.0).1,
        sparse_step::<O2<f16>>(&[1, 1], &[32_000.0, 32_000.0], 2.0).1,
    ] {
        assert!(matches!(outcome, StepOutcome::Skipped { .. }), "{outcome:?}");
    }
    let (gradient, outcome) = sparse_step::<O3<f16>>(&[1, 2], &[64_000.0, 64_000.0], 1.0);
    assert_eq!(gradient, [0.0, 64_000.0, 64_000.0, 0.0]);
    assert!(outcome.is_applied());
}
