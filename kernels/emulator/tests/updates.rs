//! Every update kernel against its formula, and random bits against the authors' vector.

mod common;

use common::{
    Subject, lamb,
    updates::{Rule, VARIANTS, adagrad, adam, random_bits, sgd, skipped},
};
use tch_amp_emulator::Noise;

#[test]
fn random_bits_are_those_of_the_authors_vector() {
    let noise = Noise { seed: u64::MAX, step: u64::MAX };
    // Element 8 · block lies in the lower half of the first word; the block is u32::MAX.
    let first = random_bits(noise, u32::MAX, 8 * u32::MAX as usize);
    assert_eq!(first, 0x5207_ddc2 & 0xFFFF);
}

fn all_agree<S>(rule: &Rule<S>) {
    for variant in VARIANTS {
        for order in 0..3 {
            rule.agrees(&Subject::linked(), variant, order).unwrap();
        }
    }
}

#[test]
fn adagrad_is_its_formula() {
    [0, 1].into_iter().for_each(|decoupled| all_agree(&adagrad(decoupled)));
}

#[test]
fn adam_is_its_formula() {
    [0, 1].into_iter().for_each(|decoupled| all_agree(&adam(decoupled)));
}

#[test]
fn sgd_is_its_formula() {
    for (momentum, dampening, nesterov) in [(0.0, 0.0, 0), (0.9, 0.25, 0), (0.9, 0.0, 1)] {
        all_agree(&sgd(momentum, dampening, nesterov));
    }
}

#[test]
fn lamb_is_its_formula() {
    for variant in VARIANTS {
        for order in 0..3 {
            lamb::agrees(&Subject::linked(), variant, order).unwrap();
        }
    }
}

#[test]
fn lamb_clips_by_the_norm_of_all_gradients() {
    lamb::norm_of_all(&Subject::linked(), 2).unwrap();
}

#[test]
fn a_skipped_step_changes_nothing() {
    skipped(&Subject::linked(), 1).unwrap();
}
