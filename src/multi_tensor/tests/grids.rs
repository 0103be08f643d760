//! The grids of Apex's `test_multi_tensor_scale`, `_axpby`, `_l2norm` and `_unscale_l2norm`, for
//! the loops and for tch operations, also in BF16.
//!
//! Apex cuts tensors into chunks of three sizes; here there is one size, 65,536. Lists that are
//! only read hold the same two tensors again and again.

use tch::{Device, Kind, TchError, Tensor};

use super::{Check, NonFinite, cpu, tensor_ops};
use crate::multi_tensor::{Tables, accumulate, scale};

const PAIRS: [[i64; 2]; 8] = [
    [7777 * 77, 555 * 555],
    [777, 555],
    [555, 65_537],
    [65_537, 555],
    [555, 65_536],
    [65_536, 555],
    [33_333, 555],
    [555, 33_333],
];
const REPEATS: [usize; 2] = [1, 55];
const KINDS: [Kind; 3] = [Kind::Float, Kind::Half, Kind::BFloat16];
/// `torch.testing.assert_close`'s relative tolerance for FP32.
const RTOL: f64 = 1.3e-6;
/// For libtorch's own FP32 norm: on the CPU it is off by up to 2.2e-5 here.
const RTOL_OF_TCH: f64 = 3e-5;

type Checks = fn(&[Option<Tensor>], f32) -> Result<Check, TchError>;
const CHECKS: [(Checks, f64); 2] = [(cpu::check, RTOL), (tensor_ops::check, RTOL_OF_TCH)];

fn full(size: i64, value: f64, kind: Kind) -> Tensor {
    Tensor::full([size], value, (kind, Device::Cpu))
}

fn repeat(pair: &[Tensor; 2], repeats: usize) -> Vec<Option<Tensor>> {
    let pairs = std::iter::repeat_n(pair, repeats).flatten();
    pairs.map(|tensor| Some(tensor.shallow_clone())).collect()
}

fn close(actual: f64, expected: f64, rtol: f64) -> bool {
    (actual - expected).abs() <= rtol * expected
}

fn is_all(tensor: &Tensor, value: f64) -> bool {
    tensor.eq(value).all().int64_value(&[]) == 1
}

/// 0, 1, …, `modulus` - 1, 0, 1, …: numbers of each type.
fn ramp(shape: &[i64], modulus: i64) -> Tensor {
    let size = shape.iter().product::<i64>();
    Tensor::arange(size, (Kind::Int64, Device::Cpu)).remainder(modulus).view(shape)
}

/// The same values with the second dimension innermost in memory.
fn channels_last(tensor: &Tensor) -> Tensor {
    tensor.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2])
}

/// test_multi_tensor_scale: 4 · 1/4 = 1. The result is FP32, and a tensor of its own.
#[test]
fn fours_times_a_quarter_are_ones() {
    for (sizes, kind) in PAIRS.iter().flat_map(|sizes| KINDS.map(|kind| (sizes, kind))) {
        for size in sizes {
            let fours = full(*size, 4.0, kind);
            let ones = scale(&fours, 0.25).unwrap();
            assert_eq!((ones.kind(), ones.size()), (Kind::Float, vec![*size]));
            assert!(is_all(&ones, 1.0), "{size} {kind:?}");
            assert!(is_all(&fours, 4.0), "{size} {kind:?}");
        }
    }
}

/// test_multi_tensor_l2norm and _unscale_l2norm: a factor of 1, and of 1/2.
#[test]
fn norms_of_fours_are_those_of_the_formula() {
    for (sizes, kind) in PAIRS.iter().flat_map(|sizes| KINDS.map(|kind| (sizes, kind))) {
        let pair = sizes.map(|size| full(size, 4.0, kind));
        for (repeats, factor) in REPEATS.iter().flat_map(|n| [(*n, 1.0f32), (*n, 0.5)]) {
            let elements = sizes.iter().sum::<i64>() * repeats as i64;
            let value = 4.0 * f64::from(factor);
            let exact = elements as f64 * value * value;
            let grads = repeat(&pair, repeats);
            let found = cpu::check(&grads, factor).unwrap();
            assert_eq!(found, Check { squared_norm: exact, non_finite: None }, "{sizes:?}");
            let found = tensor_ops::check(&grads, factor).unwrap();
            assert_eq!(found.non_finite, None);
            assert!(
                close(found.squared_norm.sqrt(), exact.sqrt(), RTOL_OF_TCH),
                "{sizes:?} {kind:?}"
            );
        }
    }
}

/// The same with values that differ: globally and for each tensor, against libtorch in FP64.
#[test]
fn norms_are_those_of_libtorch_in_fp64() {
    for (sizes, kind) in PAIRS.iter().flat_map(|sizes| KINDS.map(|kind| (sizes, kind))) {
        let pair = sizes.map(|size| (ramp(&[size], 251).to_kind(Kind::Double) * 0.013).sin());
        let pair = pair.map(|values| values.to_kind(kind));
        let exact = pair.each_ref().map(|tensor| tensor.to_kind(Kind::Double).norm());
        let exact = exact.map(|norm| norm.double_value(&[]));
        for (check, rtol) in CHECKS {
            for factor in [1.0f32, 0.5] {
                let norm = |grads: &[_]| check(grads, factor).unwrap().squared_norm.sqrt();
                let lists = repeat(&pair, 1).into_iter().zip(exact);
                for (grad, exact) in lists {
                    assert!(
                        close(norm(&[grad]), exact * f64::from(factor), rtol),
                        "{sizes:?} {kind:?}"
                    );
                }
                for repeats in REPEATS {
                    let exact = exact[0].hypot(exact[1]) * (repeats as f64).sqrt();
                    let norm = norm(&repeat(&pair, repeats));
                    assert!(close(norm, exact * f64::from(factor), rtol), "{sizes:?} {kind:?}");
                }
            }
        }
    }
}

/// Apex's three places: the first element of the first tensor, the last of the last, the middle.
fn places([a, b]: [i64; 2], repeats: usize) -> [(usize, i64, f64); 3] {
    let (last, middle) = (2 * repeats - 1, 2 * (repeats / 2));
    [(0, 0, f64::NAN), (last, b - 1, f64::INFINITY), (middle, a / 2, f64::INFINITY)]
}

fn kind_of(value: f64) -> NonFinite {
    if value.is_nan() { NonFinite::NaN } else { NonFinite::Inf }
}

/// The list with one element of one tensor replaced: (tensor, element, value).
fn spoil(grads: &[Option<Tensor>], (index, at, value): (usize, i64, f64)) -> Vec<Option<Tensor>> {
    let mut grads: Vec<_> =
        grads.iter().map(|grad| grad.as_ref().map(Tensor::shallow_clone)).collect();
    let spoilt = grads[index].as_ref().unwrap().copy();
    let _ = spoilt.get(at).fill_(value);
    grads[index] = Some(spoilt);
    grads
}

/// `find_inf` of test_multi_tensor_scale; Apex says whether, here also where and what.
#[test]
fn one_bad_element_is_found_at_either_end_and_in_the_middle() {
    for (sizes, kind) in PAIRS.iter().flat_map(|sizes| KINDS.map(|kind| (sizes, kind))) {
        let pair = sizes.map(|size| full(size, 4.0, kind));
        for repeats in REPEATS {
            let grads = repeat(&pair, repeats);
            for place in places(*sizes, repeats) {
                let spoilt = spoil(&grads, place);
                for (check, _) in CHECKS {
                    let found = check(&spoilt, 0.25).unwrap();
                    let expected = Some((place.0, kind_of(place.2)));
                    assert_eq!(found.non_finite, expected, "{sizes:?} {kind:?} {repeats}");
                    assert!(!found.squared_norm.is_finite());
                }
            }
        }
    }
}

/// test_multi_tensor_axpby: 2 · 4 + 8 · 16 = 136, in the memory of the first and in new memory.
#[test]
fn sums_of_scaled_tensors_are_those_of_the_formula() {
    let kinds = KINDS.iter().flat_map(|x| KINDS.map(|y| [*x, y]));
    for (sizes, [x, y]) in kinds.flat_map(|kinds| PAIRS.iter().map(move |sizes| (sizes, kinds))) {
        for repeats in REPEATS {
            let elements = (sizes.iter().sum::<i64>() * repeats as i64) as f64;
            let [xs, ys] = [(4.0, x), (16.0, y)]
                .map(|(value, kind)| repeat(&sizes.map(|size| full(size, value, kind)), repeats));
            let mut sums: Vec<_> = xs.iter().map(|_| None).collect();
            let found = accumulate(&Tables::default(), &mut sums, &xs, 2.0).unwrap();
            assert_eq!(found, Check { squared_norm: elements * 8.0 * 8.0, non_finite: None });
            let memory = |sums: &[Option<Tensor>]| {
                sums.iter().flatten().map(Tensor::data_ptr).collect::<Vec<_>>()
            };
            let before = memory(&sums);
            let found = accumulate(&Tables::default(), &mut sums, &ys, 8.0).unwrap();
            assert_eq!(found, Check { squared_norm: elements * 136.0 * 136.0, non_finite: None });
            assert_eq!(memory(&sums), before);
            for sum in sums.iter().flatten() {
                assert_eq!(sum.kind(), Kind::Float);
                assert!(is_all(sum, 136.0), "{sizes:?} {x:?} {y:?} {repeats}");
            }
        }
    }
}

#[test]
fn a_bad_element_of_the_second_list_is_found_in_the_sums() {
    for (sizes, kind) in PAIRS.iter().flat_map(|sizes| KINDS.map(|kind| (sizes, kind))) {
        let grads = repeat(&sizes.map(|size| full(size, 4.0, kind)), 1);
        for place in places(*sizes, 1) {
            let mut sums: Vec<_> =
                grads.iter().flatten().map(|grad| Some(grad.ones_like())).collect();
            sums.iter_mut().flatten().for_each(|sum| *sum = sum.to_kind(Kind::Float));
            let found =
                accumulate(&Tables::default(), &mut sums, &spoil(&grads, place), 0.25).unwrap();
            assert_eq!(found.non_finite, Some((place.0, kind_of(place.2))), "{sizes:?} {kind:?}");
        }
    }
}

/// test_multi_tensor_axpby with channels last, where the elements differ: each list in both
/// layouts, once, not 55 times.
#[test]
fn layouts_with_channels_last_give_the_same_sums_and_norms() {
    let pairs = [
        [[7, 77, 7, 77], [5, 55, 5, 55]],
        [[1, 1, 777, 1], [1, 1, 555, 1]],
        [[5, 47, 5, 55], [1, 1, 1, 65_537]],
        [[1, 1, 1, 65_537], [55, 47, 5, 55]],
        [[555, 1, 1, 1], [32, 8, 32, 8]],
        [[32, 8, 32, 8], [55, 47, 5, 55]],
        [[1, 1, 33_333, 1], [55, 47, 55, 5]],
        [[55, 47, 55, 5], [1, 1, 33_333, 1]],
    ];
    let layouts: [fn(&Tensor) -> Tensor; 2] = [Tensor::shallow_clone, channels_last];
    for (shapes, kind) in pairs.iter().flat_map(|pair| KINDS.map(|kind| (pair, kind))) {
        let [xs, ys] = [61, 53].map(|modulus| shapes.map(|shape| ramp(&shape, modulus)));
        let exact = [0, 1].map(|n| &xs[n] * 2 + &ys[n] * 16);
        let squares = exact.each_ref().map(|sum| sum.square().sum(Kind::Int64).int64_value(&[]));
        let squares = squares.iter().sum::<i64>() as f64;
        for (of_xs, of_ys) in layouts.iter().flat_map(|x| layouts.map(|y| (x, y))) {
            let list = |tensors: &[Tensor; 2], layout: &dyn Fn(&Tensor) -> Tensor| {
                tensors.each_ref().map(|tensor| Some(layout(&tensor.to_kind(kind))))
            };
            let mut sums = [None, None];
            accumulate(&Tables::default(), &mut sums, &list(&xs, of_xs), 2.0).unwrap();
            let found =
                accumulate(&Tables::default(), &mut sums, &list(&ys, &of_ys), 16.0).unwrap();
            assert_eq!(found, Check { squared_norm: squares, non_finite: None });
            for (sum, exact) in sums.iter().flatten().zip(&exact) {
                assert_eq!(sum.size(), exact.size());
                assert!(sum.equal(&exact.to_kind(Kind::Float)), "{shapes:?} {kind:?}");
            }
            let found = tensor_ops::check(&sums, 1.0).unwrap();
            assert!(close(found.squared_norm.sqrt(), squares.sqrt(), RTOL_OF_TCH));
        }
    }
}
