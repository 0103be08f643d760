//! Functions of a user's own run in one type inside a region, as Apex's decorators have it.

use std::panic::{self, AssertUnwindSafe};

use half::{bf16, f16};
use tch::{Device, Kind, Reduction, Tensor};
use tch_amp::{
    KeepFp32,
    autocast::{self, AutocastRegion, float_function, half_function, promote_function},
    castable,
};

const FLOATS: [Kind; 3] = [Kind::Float, Kind::Half, Kind::BFloat16];
const OTHERS: [Kind; 4] = [Kind::Double, Kind::Int64, Kind::Bool, Kind::ComplexFloat];

fn ones(kind: Kind) -> Tensor {
    Tensor::ones([2, 2], (kind, Device::Cpu))
}

fn enter_bf16() -> AutocastRegion {
    autocast::enter::<bf16>(Device::Cpu).unwrap()
}

fn enter_f16() -> AutocastRegion {
    autocast::enter::<f16>(Device::Cpu).unwrap()
}

fn kinds<const N: usize>(tensors: [Tensor; N]) -> [Kind; N] {
    tensors.map(|tensor| tensor.kind())
}

/// The type in which a matrix product of FP32 matrices runs on this thread.
fn product_kind() -> Kind {
    ones(Kind::Float).mm(&ones(Kind::Float)).kind()
}

#[test]
fn a_half_function_gets_the_type_of_the_innermost_region() {
    let _region = enter_bf16();
    assert_eq!(half_function(FLOATS.map(ones), kinds), [Kind::BFloat16; 3]);
    let _inner = enter_f16();
    assert_eq!(half_function(FLOATS.map(ones), kinds), [Kind::Half; 3]);
}

#[test]
fn a_float_function_gets_fp32() {
    let _region = enter_bf16();
    assert_eq!(float_function(FLOATS.map(ones), kinds), [Kind::Float; 3]);
}

#[test]
fn a_promote_function_gets_the_widest_type() {
    use Kind::{BFloat16, Double, Float, Half, Int64};
    let promoted = |given: [Kind; 3]| promote_function(given.map(ones), kinds);
    let _region = enter_f16();
    assert_eq!(promoted([Half, Half, Half]), [Half; 3]);
    assert_eq!(promoted([BFloat16, BFloat16, BFloat16]), [BFloat16; 3]);
    assert_eq!(promoted([Half, Float, Half]), [Float; 3]);
    assert_eq!(promoted([Float, Half, Half]), [Float; 3]);
    assert_eq!(promoted([Half, BFloat16, BFloat16]), [Float; 3]);
    assert_eq!(promoted([Half, BFloat16, Half]), [Float; 3]);
    assert_eq!(promoted([Half, Double, Int64]), [Half, Double, Int64]);
    assert_eq!(promoted([Half, Double, Float]), [Float, Double, Float]);
}

#[test]
fn doubles_and_other_tensors_are_passed_on() {
    let _region = enter_bf16();
    assert_eq!(half_function(OTHERS.map(ones), kinds), OTHERS);
    assert_eq!(float_function(OTHERS.map(ones), kinds), OTHERS);
    assert_eq!(promote_function(OTHERS.map(ones), kinds), OTHERS);
}

#[test]
fn outside_regions_they_are_plain_calls() {
    let given = [Kind::Float, Kind::Half, Kind::BFloat16, Kind::Double];
    let plain = || {
        assert_eq!(half_function(given.map(ones), kinds), given);
        assert_eq!(float_function(given.map(ones), kinds), given);
        assert_eq!(promote_function(given.map(ones), kinds), given);
    };
    plain();
    let _region = enter_bf16();
    let _suspended = autocast::disable(Device::Cpu).unwrap();
    plain();
}

#[test]
fn a_region_of_another_device_casts_nothing_here() {
    let _region = autocast::enter::<f16>(Device::Cuda(0)).unwrap();
    assert_eq!(half_function(FLOATS.map(ones), kinds), FLOATS);
    assert_eq!(float_function(FLOATS.map(ones), kinds), FLOATS);
    assert_eq!(promote_function(FLOATS.map(ones), kinds), FLOATS);
}

#[test]
fn a_marked_argument_stays_in_fp32() {
    let _region = enter_bf16();
    let kinds = |(xs, KeepFp32(mask)): (Tensor, KeepFp32<Tensor>)| (xs.kind(), mask.kind());
    let args = (ones(Kind::Float), KeepFp32(ones(Kind::Float)));
    assert_eq!(half_function(&args, kinds), (Kind::BFloat16, Kind::Float));
    let low = (ones(Kind::BFloat16), KeepFp32(ones(Kind::Float)));
    assert_eq!(promote_function(&low, kinds), (Kind::BFloat16, Kind::Float));
}

struct Boxes {
    corners: Tensor,
    classes: Tensor,
}
castable!(Boxes { corners, classes });

#[test]
fn structs_are_cast_too() {
    let _region = enter_bf16();
    let boxes = Boxes { corners: ones(Kind::BFloat16), classes: ones(Kind::Int64) };
    let kinds = float_function(&boxes, |boxes| (boxes.corners.kind(), boxes.classes.kind()));
    assert_eq!(kinds, (Kind::Float, Kind::Int64));
}

#[test]
fn casts_are_suspended_inside_and_back_afterwards() {
    let _region = enter_bf16();
    assert_eq!(half_function((), |()| product_kind()), Kind::Float);
    assert_eq!(float_function((), |()| product_kind()), Kind::Float);
    assert_eq!(promote_function((), |()| product_kind()), Kind::Float);
    assert_eq!(product_kind(), Kind::BFloat16);
}

#[test]
fn casts_are_back_after_a_panic() {
    let _region = enter_bf16();
    let call = || float_function((), |()| -> () { panic!("in the function") });
    assert!(panic::catch_unwind(AssertUnwindSafe(call)).is_err());
    assert_eq!(product_kind(), Kind::BFloat16);
}

#[test]
fn a_function_may_enter_a_region_of_its_own() {
    let _region = enter_bf16();
    let kind = float_function((), |()| {
        let _inner = enter_f16();
        product_kind()
    });
    assert_eq!((kind, product_kind()), (Kind::Half, Kind::BFloat16));
}

#[test]
fn gradients_pass_through_the_casts() {
    let _region = enter_bf16();
    let xs = ones(Kind::Float).set_requires_grad(true);
    half_function(&xs, |xs| xs * 3.0).sum(None).backward();
    assert_eq!(xs.grad().kind(), Kind::Float);
    assert_eq!(xs.grad().sum(None).double_value(&[]), 12.0);
}

/// 300² = 90000 is beyond FP16, whose largest number is 65504.
#[test]
fn a_float_function_holds_what_16_bits_cannot() {
    let _region = enter_f16();
    let xs = Tensor::from_slice(&[300.0f32]).to_kind(Kind::Half);
    assert_eq!((&xs * &xs).double_value(&[0]), f64::INFINITY);
    assert_eq!(float_function(&xs, |xs| &xs * &xs).double_value(&[0]), 90_000.0);
}

/// For p = 1/4 and y = 1 the loss is ln 4.
#[test]
fn binary_cross_entropy_runs_in_a_float_function() {
    let _region = enter_bf16();
    let args = [[0.25f32], [1.0]].map(|value| Tensor::from_slice(&value).to_kind(Kind::BFloat16));
    let loss =
        float_function(args, |[p, y]| p.binary_cross_entropy(&y, None::<Tensor>, Reduction::Mean));
    assert_eq!(loss.kind(), Kind::Float);
    assert!((loss.double_value(&[]) - 4f64.ln()).abs() < 1e-6);
}
