//! What the device decides: clipping, the loss scale, step counts.

mod common;

use common::{Kind, Random, Subject, Tensors};

fn tensors() -> Tensors {
    Tensors::random(&mut Random(21), Kind::F32, Kind::F32, Kind::F32)
}

/// Checks good or spoilt gradients, and returns the scale and the counts of good steps since it
/// changed and of overflows that are still forgiven.
fn look(tensors: &mut Tensors, overflow: bool) -> (f64, u64, u32) {
    let value = if overflow { f32::INFINITY } else { 0.5 };
    tensors.items[1].grad.as_mut().unwrap().set(0, value);
    tensors.look(&Subject::linked(), "check_f32", 1).unwrap();
    let state = tensors.state;
    assert_eq!(state.skip, u32::from(overflow));
    assert_eq!(state.inverse_scale, (1.0 / state.scale) as f32);
    (state.scale, state.unskipped, state.overflows_left)
}

/// Growth every 2 good steps, from 4; halved by an overflow; between 2 and 8.
#[test]
fn the_scale_grows_and_backs_off_between_its_limits() {
    let mut tensors = tensors();
    tensors.decision.growth_interval = 2;
    (tensors.decision.min_scale, tensors.decision.max_scale) = (2.0, 8.0);
    let expected = [
        (false, (4.0, 1, 1)),
        (false, (8.0, 0, 1)),
        (false, (8.0, 1, 1)),
        (false, (8.0, 0, 1)),
        (true, (4.0, 0, 0)),
        (true, (2.0, 0, 0)),
        (true, (2.0, 0, 0)),
        (false, (2.0, 1, 0)),
        (false, (4.0, 0, 1)),
    ];
    for (step, (overflow, expected)) in expected.into_iter().enumerate() {
        assert_eq!(look(&mut tensors, overflow), expected, "step {step}");
    }
    let state = tensors.state;
    assert_eq!((state.skipped, state.skipped_in_a_row, state.stuck_in_a_row), (3, 0, 0));
}

/// Two overflows are needed; good steps forgive the first, or growth alone does.
#[test]
fn hysteresis_forgives_overflows() {
    for (refill, scale) in [(1, 4.0), (0, 2.0)] {
        let mut tensors = tensors();
        tensors.decision.hysteresis = 2;
        tensors.decision.refill_on_good_step = refill;
        tensors.state.overflows_left = 2;
        assert_eq!(look(&mut tensors, true), (4.0, 0, 1));
        let left = if refill == 1 { 2 } else { 1 };
        assert_eq!(look(&mut tensors, false), (4.0, 1, left));
        assert_eq!(look(&mut tensors, true).0, scale);
    }
}

#[test]
fn a_static_scale_stays() {
    let mut tensors = tensors();
    tensors.decision.dynamic = 0;
    tensors.decision.growth_interval = 1;
    for overflow in [true, false, true, true] {
        assert_eq!(look(&mut tensors, overflow).0, 4.0);
    }
    assert_eq!((tensors.state.skipped, tensors.state.skipped_in_a_row), (3, 2));
}

/// torch's coefficient: `max_norm / (norm + 1e-6)`, at most 1.
#[test]
fn large_norms_are_clipped() {
    let mut tensors = tensors();
    look(&mut tensors, false);
    let norm = tensors.state.norm;
    for (max_norm, expected) in [(norm * 2.0, 1.0), (norm / 2.0, norm / 2.0 / (norm + 1e-6))] {
        tensors.decision.max_norm = max_norm;
        look(&mut tensors, false);
        assert_eq!(tensors.state.clip, expected as f32);
        assert_eq!(tensors.state.factor, (0.25 * expected) as f32);
    }
}

/// Tensors without a gradient, and skipped steps, are not counted.
#[test]
fn steps_are_counted_by_tensor() {
    let mut tensors = tensors();
    for overflow in [false, true, false, false] {
        look(&mut tensors, overflow);
    }
    for (t, progress) in tensors.progress.iter().enumerate() {
        let expected = if t == 5 { 0 } else { 3 };
        assert_eq!(progress.step, expected, "tensor {t}");
        if expected == 3 {
            let betas = tensors.betas[t % 2].beta;
            for (correction, beta) in progress.correction.into_iter().zip(betas) {
                assert!((correction / (1.0 - beta * beta * beta) - 1.0).abs() < 1e-13);
            }
        }
    }
}

/// An exchange between processes fits between looking and deciding.
#[test]
fn decisions_can_be_a_kernel_of_their_own() {
    let mut whole = tensors();
    look(&mut whole, false);
    let mut apart = tensors();
    apart.decision.decide_here = 0;
    apart.items[1].grad.as_mut().unwrap().set(0, 0.5);
    apart.look(&Subject::linked(), "check_f32", 1).unwrap();
    assert_eq!((apart.state.norm, apart.state.unskipped), (0.0, 0));
    apart.look(&Subject::linked(), "decide_step", 1).unwrap();
    assert_eq!(apart.state, whole.state);
    assert_eq!(apart.progress, whole.progress);
}
