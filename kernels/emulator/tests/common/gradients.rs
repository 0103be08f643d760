//! Check, scale and accumulate against plain loops.

use super::{Checked, Item, Kind, Random, Subject, Tensors, same, same_bits};

pub fn tensors(seed: u64, kind: Kind) -> Tensors {
    Tensors::random(&mut Random(seed), kind, Kind::F32, Kind::F32)
}

fn close_norm<'a>(
    tensors: &Tensors,
    values: impl Iterator<Item = &'a Vec<f32>>,
    factor: f64,
) -> Checked {
    let squares = values.flatten().map(|&value| (f64::from(value) * factor).powi(2));
    let (found, expected) = (tensors.state.norm, squares.sum::<f64>().sqrt());
    match (found / expected - 1.0).abs() < 1e-6 {
        true => Ok(()),
        false => Err(format!("norm: {found} instead of {expected}")),
    }
}

/// The norm is that of FP64, and decided once. Returns its bits.
pub fn norm(
    subject: &Subject,
    tensors: &mut Tensors,
    kind: Kind,
    order: u64,
) -> Result<u64, String> {
    let values = |item: &Item| Some(item.grad.as_ref()?.values());
    let grads: Vec<_> = tensors.items.iter().filter_map(values).collect();
    tensors.look(subject, &format!("check_{kind}"), order)?;
    close_norm(tensors, grads.iter(), 0.25)?;
    let state = tensors.state;
    same("found, skip, ticket", (state.found, state.skip, state.ticket), (0, 0, 0))?;
    same("factor", state.factor, 0.25)?;
    same("good steps", state.unskipped, 1)?;
    let steps: Vec<_> = tensors.progress.iter().map(|progress| progress.step).collect();
    same("steps by tensor", steps, vec![1, 1, 1, 1, 1, 0, 1])?;
    Ok(state.norm.to_bits())
}

/// `grad * 0.25`, or that added to what was there.
pub fn sums(subject: &Subject, kind: Kind, adds: bool, order: u64) -> Checked {
    let mut tensors = tensors(13 + order, kind);
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
    let kernel = format!("{}_{kind}", if adds { "accumulate" } else { "scale" });
    tensors.look(subject, &kernel, order)?;
    for (t, (item, expected)) in tensors.items.iter().zip(&expected).enumerate() {
        same_bits(&format!("{kernel}: sum {t}"), &item.copy.values(), expected)?;
    }
    let touched = tensors.items.iter().zip(&expected).filter(|(item, _)| item.grad.is_some());
    close_norm(&tensors, touched.map(|(_, values)| values), 1.0)
}

/// The first tensor that is not finite is found, and what it has.
pub fn first_spoilt(subject: &Subject, kernel: &str, kind: Kind, order: u64) -> Checked {
    // Tensor, element, value, FOUND_INF or FOUND_NAN.
    let places = [
        (1, 0, f32::INFINITY, 1),
        (2, 6, f32::NEG_INFINITY, 1),
        (3, 2047, f32::NAN, 2),
        (4, 5002, f32::NAN, 2),
        (6, 2048, f32::INFINITY, 1),
    ];
    for (tensor, element, value, found) in places {
        let mut tensors = tensors(14, kind);
        let mut spoil = |tensor: usize, element, value| {
            tensors.items[tensor].grad.as_mut().unwrap().set(element, value);
        };
        spoil(tensor, element, value);
        // A later one does not matter.
        spoil(6, 4095, f32::NAN);
        let found = if tensor == 6 { 2 } else { found };
        tensors.look(subject, &format!("{kernel}_{kind}"), order)?;
        let state = tensors.state;
        let all = (state.found, state.found_in as usize, state.skip);
        same(&format!("{kernel}_{kind}: what is found"), all, (found, tensor, 1))?;
    }
    Ok(())
}
