//! The CPU's loops against the same operations in plain tch, and against FP64.

mod by_tensor;
mod grids;
mod instructions;
mod rounding;

use proptest::{collection::vec, prelude::*};
use tch::{Device, Kind, TchError, Tensor};

use super::{Check, ElementRule, InstructionSet, NonFinite, Rule, Tables, Update, cpu, tensor_ops};

/// A rule with both a state and a product: `s = s/2 + g; w = w - 3·s`.
#[derive(Debug, Clone, Copy)]
struct Halving;

impl ElementRule<1> for Halving {
    fn element(&self, grad: f32, weight: f32, [state]: [f32; 1]) -> (f32, [f32; 1]) {
        let state = state * 0.5 + grad;
        (weight - state * 3.0, [state])
    }
}

impl Rule<1> for Halving {
    fn tensor(
        &self,
        grad: Tensor,
        weight: &Tensor,
        [state]: &mut [Tensor; 1],
    ) -> Result<Tensor, TchError> {
        let _ = state.f_mul_scalar_(0.5)?.f_add_(&grad)?;
        weight.f_sub(&state.f_mul_scalar(3.0)?)
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Float), Just(Kind::Half), Just(Kind::BFloat16)]
}

/// Finite values of all sizes, among them denormals of every type.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -100f32..100.0,
        1 => -1e-30f32..1e-30,
        1 => (-30i32..15).prop_map(|exponent| 2f32.powi(exponent)),
        1 => Just(0.0),
    ]
}

fn tensor(values: &[f32], kind: Kind, strided: bool) -> Tensor {
    let dense = Tensor::from_slice(values).to_kind(kind);
    match strided {
        true => Tensor::stack(&[&dense, &dense], 1).select(1, 1),
        false => dense,
    }
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = Vec::<f32>::try_from(tensor.to_kind(Kind::Float).contiguous());
    values.unwrap().into_iter().map(f32::to_bits).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn update_is_the_same_in_loops_and_in_tch(
        values in vec((value(), value(), value()), 0..3000),
        kinds in (kind(), kind()),
        strided in (any::<bool>(), any::<bool>()),
        copy_kind in prop_oneof![Just(None), Just(Some(Kind::Half)), Just(Some(Kind::BFloat16))],
        exponent in -20i32..4,
    ) {
        let _no_grad = tch::no_grad_guard();
        let column = |f: fn(&(f32, f32, f32)) -> f32| values.iter().map(f).collect::<Vec<_>>();
        let grad = tensor(&column(|v| v.0), kinds.0, strided.0);
        let run = |on_cpu: bool| {
            let mut weight = tensor(&column(|v| v.1), kinds.1, strided.1);
            let mut state = [tensor(&column(|v| v.2), Kind::Float, false)];
            // Only a master has a copy.
            let copy_kind = copy_kind.filter(|_| kinds.1 == Kind::Float);
            let mut copy = copy_kind.map(|kind| weight.zeros_like().to_kind(kind));
            let mut update = Update {
                rule: Halving,
                grad: &grad,
                factor: 2f32.powi(exponent),
                weight: &mut weight,
                noise: None,
                copy: copy.as_mut(),
                state: &mut state,
            };
            match on_cpu {
                true => cpu::update(&mut [update], InstructionSet::chosen()).unwrap(),
                false => tensor_ops::update(&mut update).unwrap(),
            }
            (bits(&weight), bits(&state[0]), copy.as_ref().map(bits))
        };
        prop_assert_eq!(run(true), run(false));
    }

    #[test]
    fn check_agrees_with_fp64(
        tensors in vec((vec(value(), 0..2000), kind(), any::<bool>()), 0..5),
        exponent in -20i32..4,
    ) {
        let factor = 2f32.powi(exponent);
        let grads: Vec<_> =
            tensors.iter().map(|(v, kind, strided)| Some(tensor(v, *kind, *strided))).collect();
        let exact: f64 = grads
            .iter()
            .flatten()
            .flat_map(|grad| Vec::<f32>::try_from(grad.to_kind(Kind::Float).contiguous()).unwrap())
            .map(|x| (f64::from(x) * f64::from(factor)).powi(2))
            .sum();
        for check in [cpu::check(&grads, factor).unwrap(), tensor_ops::check(&grads, factor).unwrap()] {
            prop_assert_eq!(check.non_finite, None);
            prop_assert!((check.squared_norm.sqrt() - exact.sqrt()).abs() <= 1e-5 * exact.sqrt());
        }
    }

    #[test]
    fn check_finds_the_first_tensor_that_is_not_finite(
        sizes in vec(1usize..1500, 1..6),
        kind in kind(),
        culprit in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        bad in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY)],
    ) {
        let culprit = culprit.index(sizes.len());
        let grads: Vec<_> = sizes.iter().enumerate().map(|(n, &size)| {
            let mut values = vec![1.0; size];
            if n >= culprit {
                values[place.index(size)] = bad;
            }
            Some(tensor(&values, kind, false))
        }).collect();
        let expected = if bad.is_nan() { NonFinite::NaN } else { NonFinite::Inf };
        for check in [cpu::check(&grads, 0.5).unwrap(), tensor_ops::check(&grads, 0.5).unwrap()] {
            prop_assert_eq!(check.non_finite, Some((culprit, expected)));
        }
    }
}

#[test]
fn large_finite_values_have_a_finite_norm() {
    let grads = [Some(Tensor::full([100], 1e20, (Kind::Float, Device::Cpu)))];
    for check in [cpu::check(&grads, 1.0).unwrap(), tensor_ops::check(&grads, 1.0).unwrap()] {
        assert!((check.squared_norm.sqrt() / 1e21 - 1.0).abs() < 1e-6);
        assert_eq!(check.non_finite, None);
    }
}

/// 1e30 · 2^40 is no FP32 number, though both factors are.
#[test]
fn overflow_of_the_unscaling_itself_is_found() {
    let grads = [None, Some(Tensor::full([3], 1e30, (Kind::Float, Device::Cpu)))];
    for check in [cpu::check(&grads, 2f32.powi(40)), tensor_ops::check(&grads, 2f32.powi(40))] {
        assert_eq!(check.unwrap().non_finite, Some((1, NonFinite::Inf)));
    }
}

#[test]
fn nothing_to_check_is_fine() {
    let empty = [None, Some(Tensor::zeros([0, 3], (Kind::Half, Device::Cpu)))];
    for grads in [&empty[..], &empty[..1], &[]] {
        assert_eq!(cpu::check(grads, 1.0).unwrap(), Check::default());
        assert_eq!(tensor_ops::check(grads, 1.0).unwrap(), Check::default());
    }
}

/// There is one device here: the way for several is gone on the gradients of one.
#[test]
fn gradients_on_several_devices_are_checked_one_by_one() {
    let grad = |values: &[f32]| Some(Tensor::from_slice(values));
    let grads = [grad(&[3.0]), None, grad(&[4.0, f32::NAN]), grad(&[f32::INFINITY])];
    let check = super::one_by_one(&Tables::default(), &grads, 0.5).unwrap();
    assert_eq!(check.non_finite, Some((2, NonFinite::NaN)));
    let check = super::one_by_one(&Tables::default(), &grads[..2], 0.5).unwrap();
    assert_eq!(check, Check { squared_norm: 2.25, non_finite: None });
}

#[test]
fn gradients_of_other_types_and_sizes_are_refused_and_nothing_is_changed() {
    let _no_grad = tch::no_grad_guard();
    for grad in [Tensor::from_slice(&[1f64, 2.0]), Tensor::from_slice(&[1f32, 2.0, 3.0])] {
        let mut weight = Tensor::from_slice(&[1f32, 2.0]);
        let mut state = [Tensor::from_slice(&[3f32, 4.0])];
        let mut sums = [Some(Tensor::from_slice(&[5f32, 6.0]))];
        let update = Update {
            rule: Halving,
            grad: &grad,
            factor: 1.0,
            weight: &mut weight,
            noise: None,
            copy: None,
            state: &mut state,
        };
        assert!(cpu::update(&mut [update], InstructionSet::chosen()).is_err());
        assert!(cpu::accumulate(&mut sums, &[Some(grad.shallow_clone())], 1.0).is_err());
        let [Some(sum)] = &sums else { panic!("the sum is gone") };
        let after = [&weight, &state[0], sum].map(|t| Vec::<f32>::try_from(t).unwrap());
        assert_eq!(after, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    }
    let double = [Some(Tensor::from_slice(&[1f64]))];
    assert!(matches!(cpu::check(&double, 1.0), Err(TchError::Kind(_))));
}
