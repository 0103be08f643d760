//! Apex's `test_cache`: a forward pass without gradients between two training steps takes nothing
//! from the second.
//!
//! Apex keeps 16-bit copies of weights at `O1`, and had to be careful here. This crate keeps none.

mod common;

use common::values;
use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{Module, VarStore},
};
use tch_amp::{Amp, LowPrecision, O1, Static, autocast, optim::Sgd};

const SCALE: f64 = 4.0;

/// A module that uses its weight twice in operations of one of Apex's lists.
#[derive(Debug)]
struct Uses {
    weight: Tensor,
    operations: fn(&Tensor, &Tensor) -> Tensor,
}

impl Module for Uses {
    fn forward(&self, xs: &Tensor) -> Tensor {
        (self.operations)(xs, &self.weight)
    }
}

/// What a module computes from its input and its weight, and the shape of the weight.
type Operations = ([i64; 2], fn(&Tensor, &Tensor) -> Tensor);

// Apex's three modules.
const WHITE: Operations = ([8, 8], |xs, w| xs.mm(w).mm(w));
const BLACK: Operations = ([2, 8], |xs, w| xs + w.pow_tensor_scalar(2) + w.pow_tensor_scalar(2));
const PROMOTE: Operations = ([2, 8], |xs, w| xs * w * w);

fn inputs() -> Tensor {
    Tensor::ones([2, 8], (Kind::Float, Device::Cpu))
}

/// 0, 1, 2, …: small enough for all products and sums to be exact in 16 bits.
fn ramp([rows, columns]: [i64; 2]) -> Tensor {
    Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)).view([rows, columns])
}

/// The same gradient in FP32, without a region.
fn reference(weight: &Tensor, operations: fn(&Tensor, &Tensor) -> Tensor) -> Vec<f32> {
    let leaf = weight.detach().to_kind(Kind::Float).set_requires_grad(true);
    operations(&inputs(), &leaf).sum(Kind::Float).backward();
    values(&leaf.grad())
}

/// As Apex does between its steps: the weight changes behind the optimizer's back.
fn minus_one(weight: &Tensor) {
    let _no_grad = tch::no_grad_guard();
    let _ = weight.shallow_clone().g_sub_scalar_(1.0);
}

fn evaluate(output: impl Fn() -> Tensor) {
    assert!(!tch::no_grad(&output).requires_grad());
}

/// FP32 weights: a model at `O1`, its gradients read from the step.
fn with_fp32_weight<H: LowPrecision>((shape, operations): Operations) {
    let store = VarStore::new(Device::Cpu);
    let weight = store.root().var_copy("weight", &ramp(shape));
    let module = Uses { weight: weight.shallow_clone(), operations };
    let builder = Amp::<O1<H>>::builder().loss_scale(Static::new(SCALE));
    let (model, mut opt) = builder.build((store, module), Sgd::new(1.0)).unwrap();
    let mut train = || {
        let mut step = opt.begin();
        let scaled = step.scale_loss(&model.forward(&inputs()).sum(Kind::Float)).unwrap();
        scaled.backward().unwrap();
        let mut step = step.unscale().unwrap();
        let grads = step.grads().unwrap();
        assert_eq!(grads.len(), 1);
        assert_eq!(grads[0].1.kind(), weight.kind());
        assert_eq!(values(grads[0].1), reference(&weight, operations));
        drop(step);
        minus_one(&weight);
    };
    train();
    evaluate(|| model.forward(&inputs()));
    train();
}

/// 16-bit weights, which no model at `O1` has: a region around a module in plain tch.
fn with_16_bit_weight<H: LowPrecision>((shape, operations): Operations) {
    let weight = ramp(shape).to_kind(H::KIND).set_requires_grad(true);
    let module = Uses { weight: weight.shallow_clone(), operations };
    let forward = || {
        let _region = autocast::enter::<H>(Device::Cpu).unwrap();
        module.forward(&inputs())
    };
    let train = || {
        weight.shallow_clone().zero_grad();
        (forward().sum(Kind::Float) * SCALE).backward();
        let grad = weight.grad();
        assert_eq!(grad.kind(), H::KIND);
        assert_eq!(values(&(grad / SCALE)), reference(&weight, operations));
        minus_one(&weight);
    };
    train();
    evaluate(forward);
    train();
}

#[test]
fn white_list_with_an_fp32_weight() {
    with_fp32_weight::<f16>(WHITE);
    with_fp32_weight::<bf16>(WHITE);
}

#[test]
fn white_list_with_a_16_bit_weight() {
    with_16_bit_weight::<f16>(WHITE);
    with_16_bit_weight::<bf16>(WHITE);
}

#[test]
fn black_list_with_an_fp32_weight() {
    with_fp32_weight::<f16>(BLACK);
    with_fp32_weight::<bf16>(BLACK);
}

#[test]
fn black_list_with_a_16_bit_weight() {
    with_16_bit_weight::<f16>(BLACK);
    with_16_bit_weight::<bf16>(BLACK);
}

#[test]
fn promotion_with_an_fp32_weight() {
    with_fp32_weight::<f16>(PROMOTE);
    with_fp32_weight::<bf16>(PROMOTE);
}

#[test]
fn promotion_with_a_16_bit_weight() {
    with_16_bit_weight::<f16>(PROMOTE);
    with_16_bit_weight::<bf16>(PROMOTE);
}
