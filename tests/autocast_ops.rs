//! In a CPU region, each operation of the O1 lists runs in the listed type: the results have that
//! type, and their bits are those of the same operation on arguments cast by hand without a region.

#[path = "autocast_ops/case.rs"]
mod case;
mod common;
#[path = "autocast_ops/fp32.rs"]
mod fp32;
#[path = "autocast_ops/linalg.rs"]
mod linalg;
#[path = "autocast_ops/lists.rs"]
mod lists;
#[path = "autocast_ops/lower.rs"]
mod lower;
#[path = "autocast_ops/promote.rs"]
mod promote;

use std::{
    collections::BTreeSet,
    panic::{self, AssertUnwindSafe},
};

use case::{Case, Policy};
use half::{bf16, f16};
use tch::{Device, Kind, Tensor};
use tch_amp::{LowPrecision, autocast};

/// All operations that libtorch has in a list for CUDA or the CPU and that can be called here.
fn listed() -> impl Iterator<Item = &'static Case> {
    let fp32 = [fp32::FP32, fp32::LOSSES, fp32::IMAGES, linalg::LINALG, linalg::FFT];
    let others = [lower::LOWER, promote::PROMOTE, promote::PROMOTE_BY_LIBTORCH];
    fp32.into_iter().chain(others).flatten()
}

fn cast(tensors: &[Tensor], kind: Kind) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.to_kind(kind)).collect()
}

/// Calls the operation inside and outside a region, and returns what is wrong, if anything.
fn fault<H: LowPrecision>(
    case: &Case,
    inside: &[Tensor],
    outside: &[Tensor],
    kind: Kind,
) -> Option<String> {
    let called = panic::catch_unwind(AssertUnwindSafe(|| {
        let _region = autocast::enter::<H>(Device::Cpu).unwrap();
        (case.call)(inside)
    }));
    let Ok(actual) = called else {
        return Some(format!("{} does not take the arguments", case.name));
    };
    let expected = (case.call)(outside);
    actual.iter().zip(&expected).enumerate().find_map(|(index, (actual, expected))| {
        let wanted = match expected.kind() {
            Kind::ComplexFloat if kind == Kind::Float => Kind::ComplexFloat,
            whole @ (Kind::Int | Kind::Int64) => whole,
            _ => kind,
        };
        let (name, found) = (case.name, actual.kind());
        if found != wanted {
            Some(format!("{name}: result {index} is {found:?}, not {wanted:?}"))
        } else if common::bits(&real(actual)) != common::bits(&real(expected)) {
            Some(format!("{name}: result {index} has other values"))
        } else {
            None
        }
    })
}

fn real(tensor: &Tensor) -> Tensor {
    match tensor.kind() {
        Kind::ComplexFloat => tensor.resolve_conj().view_as_real(),
        _ => tensor.shallow_clone(),
    }
}

fn assert_no_faults(faults: impl Iterator<Item = String>) {
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The gradients of FP32 arguments that are cast to `before` and go into a region.
fn gradients_in_region(case: &Case, inputs: &[Tensor], before: Kind) -> Option<Vec<Tensor>> {
    let leaves = leaves(inputs);
    let results = {
        let _region = autocast::enter::<bf16>(Device::Cpu).unwrap();
        (case.call)(&cast(&leaves, before))
    };
    backward(&results, &leaves)
}

/// The same without a region, with the casts that the region makes.
fn gradients_by_hand(case: &Case, inputs: &[Tensor], casts: [Kind; 2]) -> Option<Vec<Tensor>> {
    let leaves = leaves(inputs);
    let [before, then] = casts;
    backward(&(case.call)(&cast(&cast(&leaves, before), then)), &leaves)
}

fn leaves(inputs: &[Tensor]) -> Vec<Tensor> {
    inputs.iter().map(|input| input.copy().set_requires_grad(true)).collect()
}

/// `None` if the operation cannot be differentiated.
fn backward(results: &[Tensor], leaves: &[Tensor]) -> Option<Vec<Tensor>> {
    let differentiable = results.iter().filter(|result| result.requires_grad());
    let loss = differentiable.map(|result| real(result).sum(Kind::Float)).reduce(|a, b| a + b)?;
    loss.f_backward().ok()?;
    Some(leaves.iter().map(Tensor::grad).filter(Tensor::defined).collect())
}

fn with_policy(policy: Policy) -> impl Iterator<Item = &'static Case> {
    listed().filter(move |case| case.policy == policy)
}

/// FP32 arguments, and 16-bit ones.
fn lower_faults<'c, H: LowPrecision>(
    cases: impl Iterator<Item = &'c Case>,
) -> impl Iterator<Item = String> {
    cases.flat_map(|case| {
        let full = case.inputs();
        let low = cast(&full, H::KIND);
        let from_full = fault::<H>(case, &full, &low, H::KIND);
        from_full.into_iter().chain(fault::<H>(case, &low, &low, H::KIND))
    })
}

fn fp32_faults<H: LowPrecision>() -> impl Iterator<Item = String> {
    with_policy(Policy::Fp32).filter_map(|case| {
        let low = cast(&case.inputs(), H::KIND);
        fault::<H>(case, &low, &cast(&low, Kind::Float), Kind::Float)
    })
}

/// All arguments in 16 bits; then each of them in turn in `other`.
fn promote_faults<'c, H: LowPrecision>(
    cases: impl Iterator<Item = &'c Case>,
    other: Kind,
) -> impl Iterator<Item = String> {
    cases.flat_map(move |case| {
        let low = cast(&case.inputs(), H::KIND);
        let mut faults: Vec<_> = fault::<H>(case, &low, &low, H::KIND).into_iter().collect();
        for index in 0..low.len() {
            let mut mixed = cast(&low, H::KIND);
            mixed[index] = mixed[index].to_kind(other);
            faults.extend(fault::<H>(case, &mixed, &cast(&mixed, Kind::Float), Kind::Float));
        }
        faults
    })
}

#[test]
fn no_listed_operation_is_forgotten() {
    let listed_by_libtorch: BTreeSet<_> = lists::CUDA.into_iter().chain(lists::CPU).collect();
    let without_case = lists::WITHOUT_CASE.into_iter().map(|(name, _)| name);
    let tested: BTreeSet<_> = listed().map(|case| case.name).chain(without_case).collect();
    assert_eq!(tested, listed_by_libtorch);
    assert_eq!(tested.len(), listed().count() + lists::WITHOUT_CASE.len(), "listed twice");
}

#[test]
fn matrix_products_and_convolutions_run_in_bf16() {
    assert_no_faults(lower_faults::<bf16>(with_policy(Policy::Lower)));
}

#[test]
fn matrix_products_and_convolutions_run_in_f16() {
    assert_no_faults(lower_faults::<f16>(with_policy(Policy::Lower)));
}

#[test]
fn recurrent_layers_run_in_16_bits_as_on_cuda() {
    let faults = lower_faults::<bf16>(lower::RECURRENT.iter());
    assert_no_faults(faults.chain(lower_faults::<f16>(lower::RECURRENT.iter())));
}

#[test]
fn the_fp32_list_runs_in_fp32_in_a_bf16_region() {
    assert_no_faults(fp32_faults::<bf16>());
}

#[test]
fn the_fp32_list_runs_in_fp32_in_an_f16_region() {
    assert_no_faults(fp32_faults::<f16>());
}

#[test]
fn the_promote_list_runs_in_the_widest_type() {
    assert_no_faults(promote_faults::<bf16>(with_policy(Policy::Promote), Kind::Float));
    assert_no_faults(promote_faults::<f16>(with_policy(Policy::Promote), Kind::Float));
}

#[test]
fn scattering_and_indexed_addition_run_in_the_widest_type() {
    assert_no_faults(promote_faults::<bf16>(promote::PROMOTE_BY_US.iter(), Kind::Float));
}

#[test]
fn an_f16_tensor_in_a_bf16_region_is_promoted_to_fp32() {
    assert_no_faults(promote_faults::<bf16>(promote::PROMOTE.iter(), Kind::Half));
}

#[test]
fn in_place_operations_cast_to_the_type_of_what_they_write_to() {
    let kinds = [Kind::BFloat16, Kind::Float, Kind::Half];
    assert_no_faults(promote::INTO_FIRST.iter().flat_map(|case| {
        let full = case.inputs();
        kinds
            .into_iter()
            .flat_map(|kind| kinds.map(|other| (kind, other)))
            .filter_map(move |(kind, other)| {
                let mixed = [full[0].to_kind(kind), full[1].to_kind(other)];
                fault::<bf16>(case, &mixed, &cast(&mixed, kind), kind)
            })
            .collect::<Vec<_>>()
    }));
}

#[test]
fn gradients_are_those_of_casts_by_hand() {
    let lower = with_policy(Policy::Lower).chain(lower::RECURRENT);
    let lower = lower.map(|case| (case, [Kind::Float, Kind::BFloat16]));
    let fp32 = with_policy(Policy::Fp32).map(|case| (case, [Kind::BFloat16, Kind::Float]));
    let mut differentiable = 0;
    for (case, casts) in lower.chain(fp32) {
        let inputs = case.inputs();
        let actual = gradients_in_region(case, &inputs, casts[0]);
        let expected = gradients_by_hand(case, &inputs, casts);
        let all_bits = |grads: &Vec<Tensor>| grads.iter().map(common::bits).collect::<Vec<_>>();
        let [actual, expected] = [&actual, &expected].map(|grads| grads.as_ref().map(all_bits));
        assert_eq!(actual, expected, "{}", case.name);
        differentiable += usize::from(expected.is_some());
    }
    assert!(differentiable > 140, "{differentiable}");
}

#[test]
fn an_explicit_output_type_is_respected() {
    let _region = autocast::enter::<bf16>(Device::Cpu).unwrap();
    let low = Tensor::ones([2, 3], (Kind::BFloat16, Device::Cpu));
    for kind in [Kind::BFloat16, Kind::Double] {
        assert_eq!(low.sum(kind).kind(), kind);
        assert_eq!(low.softmax(1, kind).kind(), kind);
        assert_eq!(low.log_softmax(1, kind).kind(), kind);
        assert_eq!(low.cumsum(1, kind).kind(), kind);
        assert_eq!(low.cumprod(1, kind).kind(), kind);
    }
}

#[test]
fn operations_in_no_list_keep_the_type_of_their_arguments() {
    let _region = autocast::enter::<bf16>(Device::Cpu).unwrap();
    for kind in [Kind::BFloat16, Kind::Float] {
        let xs = case::u([2, 3, 4, 4]).to_kind(kind);
        let results = [
            ("relu", xs.relu()),
            ("gelu", xs.gelu("none")),
            ("sigmoid", xs.sigmoid()),
            ("tanh", xs.tanh()),
            ("add", &xs + &xs),
            ("mul", &xs * &xs),
            ("mul by a number", &xs * 3.0),
            ("sqrt", xs.sqrt()),
            ("mean", xs.mean(None)),
            ("dropout", xs.dropout(0.5, true)),
            ("max_pool2d", xs.max_pool2d_default(2)),
            ("avg_pool2d", xs.avg_pool2d_default(2)),
            (
                "embedding",
                Tensor::embedding(&xs.view([12, 8]), &case::ids(&[3, 1]), -1, false, false),
            ),
        ];
        for (name, result) in results {
            assert_eq!(result.kind(), kind, "{name}");
        }
    }
}

#[test]
fn sums_of_16_bit_and_fp32_tensors_are_fp32() {
    let _region = autocast::enter::<bf16>(Device::Cpu).unwrap();
    let full = case::u([3]);
    let low = full.to_kind(Kind::BFloat16);
    assert_eq!((&low + &full).kind(), Kind::Float);
    assert_eq!((&full * &low).kind(), Kind::Float);
}

#[test]
fn batch_norm_with_fp32_weights_keeps_a_16_bit_input() {
    let _region = autocast::enter::<bf16>(Device::Cpu).unwrap();
    let xs = case::u([4, 3, 2, 2]).to_kind(Kind::BFloat16);
    let [weight, bias, mean, var] = [(); 4].map(|()| case::u([3]));
    let norm = |train| {
        let [weight, bias, mean, var] = [&weight, &bias, &mean, &var].map(Some);
        xs.batch_norm(weight, bias, mean, var, train, 0.1, 1e-5, false)
    };
    assert_eq!(norm(true).kind(), Kind::BFloat16);
    assert_eq!(norm(false).kind(), Kind::BFloat16);
    assert_eq!(mean.kind(), Kind::Float);
}
