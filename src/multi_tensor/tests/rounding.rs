//! Stochastic rounding: the generator against its authors' vectors, the rounding against its
//! definition, loops against tch.

use half::bf16;
use proptest::{collection::vec, prelude::*};
use tch::{Device, Kind, Tensor};

use super::{
    super::{InstructionSet, Update, cpu, noise::Noise, tensor_ops},
    Halving, bits, tensor, value,
};

/// The vectors for `philox4x32 7` in `kat_vectors` of Random123: counter, key, result.
const KNOWN: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
    ([0; 4], [0; 2], [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]),
    ([u32::MAX; 4], [u32::MAX; 2], [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]),
    (
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        [0xa409_3822, 0x299f_31d0],
        [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a],
    ),
];

fn joined([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[test]
fn generator_gives_the_known_answers() {
    for ([block, parameter, step0, step1], key, expected) in KNOWN {
        let noise = Noise { seed: joined(key), step: joined([step0, step1]), parameter };
        assert_eq!(noise.block(block), expected);
    }
}

/// FNV-1a's published hashes of "", "a" and "foobar".
#[test]
fn parameters_are_told_apart_by_the_hash_of_their_names() {
    for (name, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
        assert_eq!(Noise::new(0, 0).of(name).parameter, hash);
    }
}

/// The bits of the first elements, from the blocks.
fn by_blocks(noise: Noise, elements: usize) -> Vec<u32> {
    let halves = |word: u32| [word & 0xFFFF, word >> 16];
    (0..).flat_map(|block| noise.block(block)).flat_map(halves).take(elements).collect()
}

/// The two bf16 values around one that is finite, and how often the one away from zero is right.
fn neighbours(value: f32) -> (bf16, bf16, f64) {
    let bits = value.to_bits();
    let toward_zero = (bits >> 16) as u16;
    let weight = f64::from(bits & 0xFFFF) / 65_536.0;
    (bf16::from_bits(toward_zero), bf16::from_bits(toward_zero + 1), weight)
}

fn round(values: &Tensor, strided: bool, noise: Noise, on_cpu: bool) -> Vec<f32> {
    let mut weight = tensor(&vec![0.0; values.numel()], Kind::BFloat16, strided);
    match on_cpu {
        true => cpu::round(values, &mut weight, noise).unwrap(),
        false => tensor_ops::round(values, &mut weight, noise).unwrap(),
    }
    bits(&weight).into_iter().map(f32::from_bits).collect()
}

fn any_value() -> impl Strategy<Value = f32> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0, 1e-45];
    prop_oneof![8 => value(), 1 => proptest::sample::select(special.to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn generator_is_the_same_in_tch(
        (seed, step, elements) in (any::<u64>(), any::<u64>(), 0usize..100),
        name in "[a-z.]{0,8}",
    ) {
        let noise = Noise::new(seed, step).of(&name);
        let words = noise.tensor(elements as i64, Device::Cpu).unwrap();
        let words: Vec<_> = Vec::<i64>::try_from(words).unwrap();
        let expected: Vec<_> = by_blocks(noise, elements).into_iter().map(i64::from).collect();
        prop_assert_eq!(words, expected);
    }

    #[test]
    fn values_go_to_a_neighbour_in_loops_and_in_tch(
        values in vec(any_value(), 0..300),
        (seed, step) in (any::<u64>(), any::<u64>()),
        (strided, strided_weight) in (any::<bool>(), any::<bool>()),
    ) {
        let noise = Noise::new(seed, step).of("w");
        let new = tensor(&values, Kind::Float, strided);
        let rounded = round(&new, strided_weight, noise, true);
        let in_tch = round(&new, strided_weight, noise, false);
        for ((&value, &rounded), &in_tch) in values.iter().zip(&rounded).zip(&in_tch) {
            prop_assert_eq!(rounded.to_bits(), in_tch.to_bits());
            let (near, far, weight) = neighbours(value);
            if value.is_nan() {
                prop_assert!(rounded.is_nan());
            } else if weight == 0.0 {
                prop_assert_eq!(rounded.to_bits(), value.to_bits());
            } else {
                prop_assert!([near.to_f32(), far.to_f32()].contains(&rounded), "{value}: {rounded}");
            }
        }
    }
}

#[test]
fn weights_of_other_types_are_rounded_to_nearest() {
    for kind in [Kind::Float, Kind::Half] {
        let values = tensor(&[1.0 + 1e-4, -0.3, 123.456], Kind::Float, false);
        let mut weight = values.zeros_like().to_kind(kind);
        super::super::write(&values, &mut weight, Some(Noise::new(1, 0))).unwrap();
        assert_eq!(bits(&weight), bits(&values.to_kind(kind)));
    }
}

/// Each frequency is within five standard deviations of the distance to the other neighbour.
#[test]
fn nearer_neighbour_is_taken_more_often() {
    const N: usize = 100_000;
    for (seed, value) in [(1, 1.0 + 1e-4), (2, -0.3), (3, 1e-40), (4, 123.456), (5, 1.0 - 1e-5)] {
        let (near, far, weight) = neighbours(value);
        let values = Tensor::full([N as i64], f64::from(value), (Kind::Float, Device::Cpu));
        let rounded = round(&values, false, Noise::new(seed, 0), true);
        let away = rounded.iter().filter(|rounded| **rounded == far.to_f32()).count();
        let toward = rounded.iter().filter(|rounded| **rounded == near.to_f32()).count();
        assert_eq!(away + toward, N);
        let deviation = (weight * (1.0 - weight) / N as f64).sqrt();
        let frequency = away as f64 / N as f64;
        assert!((frequency - weight).abs() < 5.0 * deviation, "{value}: {frequency}, not {weight}");
    }
}

/// Neither the words of a block nor its halves, nor steps or parameters, repeat each other.
#[test]
fn bits_of_elements_steps_and_parameters_differ() {
    let bits = |seed, step, name| by_blocks(Noise::new(seed, step).of(name), 4096);
    let first = bits(1, 0, "w");
    for other in [bits(2, 0, "w"), bits(1, 1, "w"), bits(1, 1 << 32, "w"), bits(1, 0, "b")] {
        let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 6, "{same} of 4096 are the same, where one in 65536 would be");
    }
    let distinct: std::collections::BTreeSet<_> = first.iter().collect();
    // Of 4096 draws from 65536, 126 ± 11 are expected to repeat an earlier one.
    assert!((3900..4050).contains(&distinct.len()), "{} of 4096 are distinct", distinct.len());
}

/// Random bits go by the element's place in the tensor, not in the part that a thread works on.
#[test]
fn weights_in_several_parts_are_rounded_as_a_whole() {
    let _no_grad = tch::no_grad_guard();
    let options = (Kind::Float, Device::Cpu);
    let grad = Tensor::arange(140_001, options) / 977.0;
    let run = |on_cpu: bool| {
        let mut weight = (Tensor::arange(140_001, options) / 331.0).to_kind(Kind::BFloat16);
        let mut state = [Tensor::zeros([140_001], options)];
        let mut update = Update {
            rule: Halving,
            grad: &grad,
            factor: 0.25,
            weight: &mut weight,
            noise: Some(Noise::new(1, 2).of("w")),
            copy: None,
            state: &mut state,
        };
        match on_cpu {
            true => cpu::update(&mut [update], InstructionSet::chosen()).unwrap(),
            false => tensor_ops::update(&mut update).unwrap(),
        }
        bits(&weight)
    };
    assert_eq!(run(true), run(false));
}
