//! Check, scale and accumulate against plain loops.

mod common;

use common::{Kind, Random, Tensors, bits};

const KINDS: [(&str, Kind); 3] = [("f16", Kind::F16), ("bf16", Kind::Bf16), ("f32", Kind::F32)];

fn tensors(seed: u64, kind: Kind) -> Tensors {
    Tensors::random(&mut Random(seed), kind, Kind::F32, Kind::F32)
}

/// The norm of `values * factor` in FP64.
fn norm<'a>(values: impl Iterator<Item = &'a Vec<f32>>, factor: f64) -> f64 {
    let squares = values.flatten().map(|&value| (f64::from(value) * factor).powi(2));
    squares.sum::<f64>().sqrt()
}

fn grads(tensors: &Tensors) -> Vec<Vec<f32>> {
    tensors.items.iter().filter_map(|item| Some(item.grad.as_ref()?.values())).collect()
}

#[test]
fn the_norm_is_that_of_fp64_and_the_same_in_every_order() {
    for (name, kind) in KINDS {
        let mut found = Vec::new();
        for order in 0..4 {
            let mut tensors = tensors(11, kind);
            let expected = norm(grads(&tensors).iter(), 0.25);
            tensors.look(&format!("check_{name}"), order);
            assert!((tensors.state.norm / expected - 1.0).abs() < 1e-6, "{name}");
            assert_eq!((tensors.state.found, tensors.state.skip, tensors.state.ticket), (0, 0, 0));
            assert_eq!(tensors.state.factor, 0.25);
            found.push(tensors.state.norm.to_bits());
        }
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{name}");
    }
}

/// Squares of these leave FP32 on either side.
#[test]
fn huge_and_tiny_values_have_a_norm() {
    for value in [1e30f32, 1e-30] {
        let mut tensors = tensors(12, Kind::F32);
        for item in &mut tensors.items {
            let Some(grad) = &mut item.grad else { continue };
            (0..grad.values().len()).for_each(|i| grad.set(i, value));
        }
        let expected = norm(grads(&tensors).iter(), 0.25);
        tensors.look("check_f32", 1);
        assert!((tensors.state.norm / expected - 1.0).abs() < 1e-6, "{value}");
    }
}

#[test]
fn scaled_gradients_and_sums_are_those_of_the_loops() {
    for (name, kind) in KINDS {
        for adds in [false, true] {
            for order in 0..3 {
                let mut tensors = tensors(13, kind);
                // What comes out is looked at.
                tensors.decision.scaled = 0;
                let expected: Vec<Vec<f32>> = tensors
                    .items
                    .iter()
                    .map(|item| {
                        let old = item.copy.values();
                        let Some(grad) = &item.grad else { return old };
                        let sum = |(grad, old): (f32, f32)| {
                            if adds { old + grad * 0.25 } else { grad * 0.25 }
                        };
                        grad.values().into_iter().zip(old).map(sum).collect()
                    })
                    .collect();
                let kernel = if adds { "accumulate" } else { "scale" };
                tensors.look(&format!("{kernel}_{name}"), order);
                for (item, expected) in tensors.items.iter().zip(&expected) {
                    assert_eq!(bits(&item.copy.values()), bits(expected), "{kernel}_{name}");
                }
                let touched = tensors.items.iter().zip(&expected).filter(|(i, _)| i.grad.is_some());
                let expected = norm(touched.map(|(_, values)| values), 1.0);
                assert!((tensors.state.norm / expected - 1.0).abs() < 1e-6, "{kernel}_{name}");
            }
        }
    }
}

#[test]
fn the_first_tensor_that_is_not_finite_is_found() {
    // Tensor, element, value, FOUND_INF or FOUND_NAN.
    let places = [
        (1, 0, f32::INFINITY, 1),
        (2, 6, f32::NEG_INFINITY, 1),
        (3, 2047, f32::NAN, 2),
        (4, 5002, f32::NAN, 2),
        (6, 2048, f32::INFINITY, 1),
    ];
    for (name, kind) in KINDS {
        for kernel in ["check", "scale", "accumulate"] {
            for (tensor, element, value, found) in places {
                let mut tensors = tensors(14, kind);
                let mut spoil = |tensor: usize, element, value| {
                    tensors.items[tensor].grad.as_mut().unwrap().set(element, value);
                };
                spoil(tensor, element, value);
                // A later one does not matter.
                spoil(6, 4095, f32::NAN);
                let found = if tensor == 6 { 2 } else { found };
                tensors.look(&format!("{kernel}_{name}"), 2);
                let state = tensors.state;
                let all = (state.found, state.found_in as usize, state.skip);
                assert_eq!(all, (found, tensor, 1), "{kernel}_{name}, {tensor}");
            }
        }
    }
}
