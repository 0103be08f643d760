//! Check, scale and accumulate, for all types and in several orders.

mod common;

use common::{
    Kind, Subject,
    gradients::{first_spoilt, norm, sums, tensors},
};

#[test]
fn the_norm_is_that_of_fp64_and_the_same_in_every_order() {
    for kind in Kind::ALL {
        let found = |order| norm(&Subject::linked(), &mut tensors(11, kind), kind, order).unwrap();
        let in_order = found(0);
        assert!((1..4).all(|order| found(order) == in_order), "{kind}");
    }
}

/// Squares of these leave FP32 on either side.
#[test]
fn huge_and_tiny_values_have_a_norm() {
    for value in [1e30f32, 1e-30] {
        let mut tensors = tensors(12, Kind::F32);
        for item in &mut tensors.items {
            let Some(grad) = &mut item.grad else { continue };
            (0..grad.len).for_each(|i| grad.set(i, value));
        }
        norm(&Subject::linked(), &mut tensors, Kind::F32, 1).unwrap();
    }
}

#[test]
fn scaled_gradients_and_sums_are_those_of_the_loops() {
    for kind in Kind::ALL {
        for (adds, order) in [(false, 0), (false, 1), (false, 2), (true, 0), (true, 1), (true, 2)] {
            sums(&Subject::linked(), kind, adds, order).unwrap();
        }
    }
}

#[test]
fn the_first_tensor_that_is_not_finite_is_found() {
    for kind in Kind::ALL {
        for kernel in ["check", "scale", "accumulate"] {
            first_spoilt(&Subject::linked(), kernel, kind, 2).unwrap();
        }
    }
}
