//! Every instruction set gives the same bits, also of what is not finite.

use proptest::{collection::vec, prelude::*};
use tch::{Device, Kind, Tensor};

use super::{
    super::{
        Noise, Update,
        cpu::{InstructionSet, add, squared_norms, update},
    },
    Halving, kind, value,
};

/// Values of all kinds, infinities and NaN included.
fn any_value() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => value(),
        2 => any::<u32>().prop_map(f32::from_bits),
        1 => prop_oneof![Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(f32::NAN), Just(-0.0)],
    ]
}

/// A tensor with the values, in memory as `layout` says: dense, misaligned, or every other element.
fn laid_out(values: &[f32], kind: Kind, layout: u8) -> Tensor {
    let dense = Tensor::from_slice(values).to_kind(kind);
    let len = values.len() as i64;
    match layout {
        0 => dense,
        1 => {
            let room = Tensor::zeros([len + 1], (kind, Device::Cpu));
            let mut view = room.narrow(0, 1, len);
            view.copy_(&dense);
            view
        }
        _ => Tensor::stack(&[&dense, &dense], 1).select(1, 1),
    }
}

/// The bits, but one NaN is as good as another.
fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = Vec::<f32>::try_from(tensor.to_kind(Kind::Float).contiguous()).unwrap();
    values.into_iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

fn bits_of_norms(norms: Vec<f64>) -> Vec<u64> {
    norms.into_iter().map(|x| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() }).collect()
}

type Triple = (f32, f32, f32);

fn column(values: &[Triple], of: fn(&Triple) -> f32) -> Vec<f32> {
    values.iter().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn updates_are_the_same(
        tensors in vec(
            (vec((any_value(), any_value(), value()), 0..2500), (kind(), kind()), (0u8..3, 0u8..3)),
            1..4,
        ),
        copy_kind in prop_oneof![Just(None), Just(Some(Kind::Half)), Just(Some(Kind::BFloat16))],
        stochastic in any::<bool>(),
        exponent in -20i32..4,
    ) {
        let _no_grad = tch::no_grad_guard();
        let run = |set: InstructionSet| {
            let make = |(values, kinds, layouts): &(Vec<Triple>, (Kind, Kind), (u8, u8))| {
                let grad = laid_out(&column(values, |v| v.0), kinds.0, layouts.0);
                let weight = laid_out(&column(values, |v| v.1), kinds.1, layouts.1);
                let copy_kind = copy_kind.filter(|_| kinds.1 == Kind::Float);
                let copy = copy_kind.map(|kind| weight.zeros_like().to_kind(kind));
                let state = [Tensor::from_slice(&column(values, |v| v.2))];
                (grad, weight, copy, state)
            };
            let mut all: Vec<_> = tensors.iter().map(make).collect();
            let mut updates = Vec::new();
            for (grad, weight, copy, state) in &mut all {
                updates.push(Update {
                    rule: Halving,
                    grad,
                    factor: 2f32.powi(exponent),
                    weight,
                    noise: stochastic.then(|| Noise::new(3, 5).of("w")),
                    copy: copy.as_mut(),
                    state,
                });
            }
            update(&mut updates, set).unwrap();
            all.iter()
                .map(|(_, weight, copy, [state])| {
                    (bits(weight), copy.as_ref().map(bits), bits(state))
                })
                .collect::<Vec<_>>()
        };
        let sets = InstructionSet::all();
        let expected = run(sets[0]);
        for set in &sets[1..] {
            prop_assert_eq!(&run(*set), &expected, "{:?}", set);
        }
    }

    #[test]
    fn norms_and_sums_are_the_same(
        tensors in vec((vec((any_value(), any_value(), value()), 0..2500), kind(), 0u8..3), 1..4),
        exponent in -20i32..4,
    ) {
        let _no_grad = tch::no_grad_guard();
        let factor = 2f32.powi(exponent);
        let run = |set: InstructionSet| {
            let grads: Vec<_> = tensors
                .iter()
                .map(|(values, kind, layout)| {
                    Some(laid_out(&column(values, |v| v.0), *kind, *layout))
                })
                .collect();
            let mut sums: Vec<_> = tensors
                .iter()
                .map(|(values, _, layout)| {
                    let sum = laid_out(&column(values, |v| v.1), Kind::Float, *layout);
                    Some(sum).filter(|_| values.len() % 2 == 0)
                })
                .collect();
            let norms = squared_norms(grads.iter().map(Option::as_ref), factor, set).unwrap();
            let norms_of_sums = add(&mut sums, &grads, factor, set).unwrap();
            let sums: Vec<_> = sums.iter().flatten().map(bits).collect();
            (bits_of_norms(norms), bits_of_norms(norms_of_sums), sums)
        };
        let sets = InstructionSet::all();
        let expected = run(sets[0]);
        for set in &sets[1..] {
            prop_assert_eq!(&run(*set), &expected, "{:?}", set);
        }
    }
}
