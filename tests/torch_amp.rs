//! `torch.amp`'s own tests of `GradScaler`, with plain tch loops or arithmetic as the oracle.
//!
//! The scaling cases train two linear layers for four batches, with a learning rate of 1 and an
//! infinite gradient in the third; the scale starts at 128, and grows after each good step.

#[path = "torch_amp/autocast.rs"]
mod autocast;
mod common;
#[path = "torch_amp/optimizers.rs"]
mod optimizers;
#[path = "torch_amp/recurrent.rs"]
mod recurrent;
#[path = "torch_amp/scale.rs"]
mod scale;
#[path = "torch_amp/unscale.rs"]
mod unscale;

use common::{noise, values};
use half::f16;
use tch::{
    Device, Kind, Tensor,
    nn::{self, Module, ModuleT, OptimizerConfig, VarStore},
};
use tch_amp::{
    Amp, AmpModel, Dynamic, O0, O1, OptLevel, Optimizer, StepError,
    optim::Sgd,
    step::{Step, Unscaled},
};

const BATCHES: usize = 4;
const SKIPPED: usize = 2;
const INIT: f64 = 128.0;
const GROWTH: f64 = 2.0;
const BACKOFF: f64 = 0.5;
/// torch's relative tolerance in all scaling cases.
const RTOL: f32 = 1e-5;

/// What a case does besides scaling.
#[derive(Debug, Clone, Copy)]
struct Case {
    clip: Option<Clip>,
    /// How many batches make a step.
    accumulate: usize,
    /// Whether the norm of the gradients is added to the loss.
    penalty: bool,
    /// Whether the third batch has an infinite gradient.
    overflows: bool,
}

#[derive(Debug, Clone, Copy)]
enum Clip {
    Norm(f64),
    Value(f64),
}

const SIMPLE: Case = Case { clip: None, accumulate: 1, penalty: false, overflows: true };

/// Parameters after the last step, and gradients in it.
struct Trained {
    params: Vec<f32>,
    grads: Vec<f32>,
}

fn layers() -> (VarStore, nn::Sequential) {
    let store = VarStore::new(Device::Cpu);
    let layer = |name: &str| nn::linear(store.root() / name, 8, 8, Default::default());
    let net = nn::seq().add(layer("0")).add(layer("1"));
    common::fill(&store, 9);
    (store, net)
}

/// Normal deviates, near enough: each is the sum of twelve uniform ones.
fn randn(seed: u64) -> Tensor {
    noise(seed, &[12, 8, 8]).sum_dim_intlist([0].as_slice(), false, Kind::Float) * 0.5
}

fn data() -> Vec<(Tensor, Tensor)> {
    (0..BATCHES as u64).map(|n| (randn(10 + n), randn(20 + n))).collect()
}

fn concat<'t>(tensors: impl Iterator<Item = &'t Tensor>) -> Vec<f32> {
    tensors.flat_map(values).collect()
}

/// The norm of all gradients, through which gradients flow.
fn norm(grads: &[Tensor]) -> Tensor {
    let squares = grads.iter().map(|grad| grad.square().sum(Kind::Float));
    squares.reduce(|a, b| a + b).unwrap().sqrt()
}

/// The loop without a scaler, in plain tch.
fn control(case: Case, enabled: bool, torch: impl OptimizerConfig, lr: f64) -> Trained {
    let (store, net) = layers();
    let mut opt = torch.build(&store, lr).unwrap();
    let params = store.trainable_variables();
    let mut grads = Vec::new();
    for (n, (xs, ys)) in data().iter().enumerate() {
        let mut loss = net.forward(xs).mse_loss(ys, tch::Reduction::Mean) / case.accumulate as f64;
        if case.penalty {
            loss += norm(&Tensor::run_backward(&[&loss], &params, true, true));
        }
        loss.backward();
        if (n + 1) % case.accumulate != 0 {
            continue;
        }
        match case.clip {
            Some(Clip::Norm(max)) => opt.clip_grad_norm(max),
            Some(Clip::Value(max)) => opt.clip_grad_value(max),
            None => {}
        }
        if !(enabled && case.overflows && n == SKIPPED) {
            opt.step();
        }
        grads = concat(params.iter().map(Tensor::grad).collect::<Vec<_>>().iter());
        opt.zero_grad();
    }
    Trained { params: concat(params.iter()), grads }
}

fn clip<L: OptLevel, O: Optimizer>(
    grads: &mut Step<'_, L, O, Unscaled>,
    clip: Option<Clip>,
) -> Result<(), StepError> {
    match clip {
        Some(Clip::Norm(max)) => grads.clip_grad_norm(max).map(drop),
        Some(Clip::Value(max)) => grads.clip_grad_value(max),
        None => Ok(()),
    }
}

/// A loss whose gradient is infinite.
fn infinite<L: OptLevel>(model: &AmpModel<L, nn::Sequential>) -> Tensor {
    (&model.variables()["1.weight"] * f64::INFINITY).sum(Kind::Float)
}

/// The same with a scaler; returns the last scale too.
fn scaling<L: OptLevel>(case: Case, enabled: bool, own: impl Optimizer) -> (Trained, f64) {
    let scale = Dynamic::new().init_scale(INIT).growth_factor(GROWTH).backoff_factor(BACKOFF);
    let builder = Amp::<L>::builder().enabled(enabled).loss_scale(scale.growth_interval(1));
    let (model, mut opt) = builder.build(layers(), own).unwrap();
    let mut grads = Vec::new();
    for (n, batches) in data().chunks(case.accumulate).enumerate() {
        let mut step = opt.begin();
        for (xs, ys) in batches {
            let loss = model.forward_t(xs, true).mse_loss(ys, tch::Reduction::Mean);
            let mut loss = loss / case.accumulate as f64;
            if case.penalty {
                let params: Vec<_> = model.variables().into_values().collect();
                loss += norm(&step.scale_loss(&loss).unwrap().grad(&params).unwrap());
            }
            if enabled && case.overflows && n == SKIPPED {
                loss += infinite(&model);
            }
            step.backward(&loss).unwrap();
        }
        let mut step = step.unscale().unwrap();
        clip(&mut step, case.clip).unwrap();
        grads = concat(step.grads().unwrap().into_iter().map(|(_, grad)| grad));
        let applied = step.step().unwrap().is_applied();
        assert_eq!(applied, !(enabled && case.overflows && n == SKIPPED));
    }
    let params = concat(opt.master_params().map(|(_, param)| param));
    (Trained { params, grads }, opt.scalers()[0].scale())
}

/// The first value that is not as expected, within torch's and an absolute tolerance.
fn difference(actual: &[f32], expected: &[f32], atol: f32) -> Option<(f32, f32)> {
    assert_eq!(actual.len(), expected.len());
    let mut pairs = actual.iter().copied().zip(expected.iter().copied());
    let close = |(a, b): (f32, f32)| (a - b).abs() <= atol + RTOL * b.abs();
    pairs.find(|&pair| !close(pair))
}

fn run_scaling_case<L: OptLevel>(case: Case, unskipped: i32, skipped: i32, atol: f32) {
    for enabled in [true, false] {
        let expected = control(case, enabled, nn::Sgd::default(), 1.0);
        let (actual, scale) = scaling::<L>(case, enabled, Sgd::new(1.0));
        assert_eq!(difference(&actual.params, &expected.params, atol), None);
        assert_eq!(difference(&actual.grads, &expected.grads, atol), None);
        match enabled {
            true => assert_eq!(scale, INIT * GROWTH.powi(unskipped) * BACKOFF.powi(skipped)),
            false => assert_eq!(scale, 1.0),
        }
    }
}

#[test]
fn scaling_changes_nothing_but_skips() {
    run_scaling_case::<O0>(SIMPLE, 3, 1, 1e-7);
}

/// test_grad_scaling_autocast; for Adam and AdamW see `optimizers`.
#[test]
fn sgd_under_autocast_is_close_to_fp32() {
    run_scaling_case::<O1<f16>>(SIMPLE, 3, 1, 1e-3);
}

/// torch clips scaled gradients to a limit times the scale; here, true gradients to the limit.
#[test]
fn clipping_by_norm_after_unscale() {
    run_scaling_case::<O0>(Case { clip: Some(Clip::Norm(0.2)), ..SIMPLE }, 3, 1, 1e-7);
}

#[test]
fn clipping_by_value_after_unscale() {
    run_scaling_case::<O0>(Case { clip: Some(Clip::Value(0.01)), ..SIMPLE }, 3, 1, 1e-7);
}

#[test]
fn accumulation_over_two_batches() {
    run_scaling_case::<O0>(Case { accumulate: 2, overflows: false, ..SIMPLE }, 2, 0, 1e-7);
}

#[test]
fn accumulation_with_clipping() {
    let clip = Some(Clip::Norm(0.2));
    let case = Case { clip, accumulate: 2, overflows: false, ..SIMPLE };
    run_scaling_case::<O0>(case, 2, 0, 1e-7);
}

/// test_grad_scaling_penalty: the penalty is the norm of unscaled gradients, with a graph.
#[test]
fn penalty_on_gradients_of_the_scaled_loss() {
    run_scaling_case::<O0>(Case { penalty: true, ..SIMPLE }, 3, 1, 1e-7);
}

/// torch applies gradients that were broken between `unscale_` and `step`, and the parameters are
/// lost. Here a step owns its gradients: a stray backward pass does not reach them.
#[test]
fn gradients_broken_between_unscale_and_step_invalidate_nothing() {
    let builder = Amp::<O1<f16>>::builder().loss_scale(Dynamic::new().init_scale(INIT));
    let (model, mut opt) = builder.build(layers(), Sgd::new(1.0)).unwrap();
    let (xs, ys) = &data()[0];
    let before = concat(opt.master_params().map(|(_, param)| param));
    let loss = model.forward_t(xs, true).mse_loss(ys, tch::Reduction::Mean);
    let mut step = opt.begin();
    step.backward(&loss).unwrap();
    let mut step = step.unscale().unwrap();
    let grads = concat(step.grads().unwrap().into_iter().map(|(_, grad)| grad));
    for (n, param) in model.variables().values().enumerate() {
        let bad = if n % 2 == 0 { f64::INFINITY } else { f64::NAN };
        (param * bad).sum(Kind::Float).backward();
        assert_eq!(param.grad().isfinite().any().int64_value(&[]), 0);
    }
    assert!(step.step().unwrap().is_applied());
    let expected: Vec<_> = before.iter().zip(&grads).map(|(param, grad)| param - grad).collect();
    assert_eq!(concat(opt.master_params().map(|(_, param)| param)), expected);
}
