//! What the tests share.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

mod array;
mod compile;
pub mod gradients;
pub mod lamb;
mod tensors;
pub mod updates;

use std::fmt::Debug;

pub use array::{Array, Kind, Random, SANITIZED};
pub use compile::{Fault, compile, compiler};
pub use tensors::{Item, Subject, Tensors};

/// What differs, if anything.
pub type Checked = Result<(), String>;

pub fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Checked {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?} instead of {expected:?}"))
}

/// To the last bit, where one NaN is as good as another.
pub fn same_bits(what: &str, found: &[f32], expected: &[f32]) -> Checked {
    let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    match found.iter().zip(expected).position(differ) {
        Some(i) => Err(format!("{what}, element {i}: {} instead of {}", found[i], expected[i])),
        None => same(&format!("length of {what}"), found.len(), expected.len()),
    }
}

/// A sample of all that kernels are held to, in several orders of their threads.
pub fn check_all(subject: &Subject) -> Checked {
    for order in 0..4 {
        for kind in [Kind::F16, Kind::F32] {
            gradients::norm(subject, &mut gradients::tensors(11, kind), kind, order)?;
            gradients::sums(subject, kind, true, order)?;
            gradients::first_spoilt(subject, "scale", kind, order)?;
        }
        let (adam, sgd) = (updates::adam(1), updates::sgd(0.9, 0.25, 0));
        for variant in ["f16_master_f16", "f32_f32", "bf16_stochastic"] {
            adam.agrees(subject, variant, order)?;
            sgd.agrees(subject, variant, order)?;
        }
        lamb::agrees(subject, "f16_master_f16", order)?;
        updates::skipped(subject, order)?;
    }
    Ok(())
}
