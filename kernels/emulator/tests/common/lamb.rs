//! Lamb against its formula in plain loops, with norms in FP64.

use tch_amp_emulator::{LambSettings, Noise};

use super::{
    Checked, Kind, Random, Subject, Tensors, same_bits,
    updates::{Variant, progress},
};

const FACTOR: f32 = 0.75;
/// Of all gradients, before they are multiplied by the factor.
const NORM: f64 = 80.0;

/// The first group is clipped by 2 and has decoupled weight decay; the other is not clipped, has an
/// L2 penalty, and takes Adam's steps.
fn settings() -> [LambSettings; 2] {
    let first = LambSettings {
        lr: 0.01,
        beta: [0.9, 0.999],
        fresh: 0.1,
        eps: 1e-6,
        weight_decay: 0.1,
        max_grad_norm: 30.0,
        decoupled: 1,
        trust: 1,
    };
    let other = LambSettings {
        beta: [0.5, 0.75],
        fresh: 1.0,
        max_grad_norm: f64::INFINITY,
        decoupled: 0,
        trust: 0,
        ..first
    };
    [first, other]
}

/// All launches of an update, but for the norm of all gradients.
pub fn agrees(subject: &Subject, variant: &str, order: u64) -> Checked {
    let types = Variant::named(variant);
    let noise = Noise { seed: 0x1234_5678_9ABC_DEF0, step: 3 };
    let mut random = Random(31 + variant.len() as u64);
    let copy = types.copy.unwrap_or(Kind::F32);
    let mut tensors = Tensors::random(&mut random, types.grad, types.weight, copy);
    tensors.progress = progress([1, 2, 3, 4, 5, 6, 1000], |t| settings()[t % 2].beta);
    // Steps of a tensor without weights are Adam's.
    (0..7).for_each(|i| tensors.items[2].weight.set(i, 0.0));
    (tensors.state.factor, tensors.state.norm) = (FACTOR, NORM);
    let mut expected = Vec::new();
    for (t, item) in tensors.items.iter().enumerate() {
        let of = settings()[t % 2];
        let [c1, c2] = tensors.progress[t].correction;
        let (mut w, [mut m, mut v]) =
            (item.weight.values(), item.state.each_ref().map(|state| state.values()));
        let Some(grads) = &item.grad else {
            expected.push((w, m, v));
            continue;
        };
        let factor = if of.trust == 1 { FACTOR / 2.0 } else { FACTOR };
        let (l2, decay) = if of.decoupled == 1 { (0.0, 0.1) } else { (0.1, 0.0) };
        let (unbias, root_scale) = ((1.0 / c1) as f32, (1.0 / c2.sqrt()) as f32);
        let direction: Vec<f32> = grads
            .values()
            .iter()
            .enumerate()
            .map(|(i, grad)| {
                let g = grad * factor + l2 * w[i];
                m[i] = of.beta[0] as f32 * m[i] + of.fresh as f32 * g;
                v[i] = of.beta[1] as f32 * v[i] + (1.0 - of.beta[1]) as f32 * (g * g);
                unbias * m[i] / (v[i].sqrt() * root_scale + 1e-6) + decay * w[i]
            })
            .collect();
        let norm =
            |values: &[f32]| values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let known = of.trust == 1 && norm(&w) > 0.0 && norm(&direction) > 0.0;
        let ratio = if known { norm(&w) / norm(&direction) } else { 1.0 };
        let step_size = (0.01 * ratio) as f32;
        for (i, direction) in direction.into_iter().enumerate() {
            w[i] = types.round(w[i] - step_size * direction, noise, item.noise, i);
        }
        expected.push((w, m, v));
    }
    let copies: Vec<_> = tensors.items.iter().map(|item| item.copy.values()).collect();

    let moments = format!("lamb_moments_{}_{}", types.grad, types.weight);
    let step = format!("lamb_step_{}", variant.split_once('_').unwrap().1);
    tensors.update(subject, &moments, &settings(), noise, order)?;
    tensors.figures(subject, "lamb_norms", order)?;
    tensors.update(subject, &step, &settings(), noise, order)?;
    for (t, (item, (w, m, v))) in tensors.items.iter().zip(expected).enumerate() {
        same_bits(&format!("{moments}: first moment {t}"), &item.state[0].values(), &m)?;
        same_bits(&format!("{moments}: second moment {t}"), &item.state[1].values(), &v)?;
        same_bits(&format!("{step}: weight {t}"), &item.weight.values(), &w)?;
        let copied = match types.copy.filter(|_| item.grad.is_some()) {
            Some(kind) => w.iter().map(|w| kind.round(*w)).collect(),
            None => copies[t].clone(),
        };
        same_bits(&format!("{step}: copy {t}"), &item.copy.values(), &copied)?;
    }
    Ok(())
}

/// The norms of two lists of tensors make one.
pub fn norm_of_all(subject: &Subject, order: u64) -> Checked {
    let mut tensors = Tensors::random(&mut Random(33), Kind::F32, Kind::F32, Kind::F32);
    tensors.decision.decide_here = 0;
    let grads = tensors.items.iter().filter_map(|item| Some(item.grad.as_ref()?.values()));
    let squares: f64 = grads.flatten().map(|grad| f64::from(grad).powi(2)).sum();
    tensors.look(subject, "check_f32", order)?;
    for lists in 1..3 {
        tensors.figures(subject, "lamb_grad_norm", order)?;
        let (found, expected) = (tensors.state.norm, (f64::from(lists) * squares).sqrt());
        if (found / expected - 1.0).abs() > 1e-6 {
            return Err(format!("norm of {lists} lists: {found} instead of {expected}"));
        }
    }
    Ok(())
}
