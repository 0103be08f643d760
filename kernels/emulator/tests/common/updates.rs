//! Every update kernel against its formula in plain loops, bit for bit.

use tch_amp_emulator::{AdagradSettings, AdamSettings, LambSettings, Noise, Progress, SgdSettings};

use super::{Array, Checked, Item, Kind, Random, Subject, Tensors, same, same_bits};

/// The variants: gradient, weight, and the 16-bit copy of a master.
pub const VARIANTS: [&str; 13] = [
    "f16_master_f16",
    "bf16_master_bf16",
    "f32_master_f16",
    "f32_master_bf16",
    "f16_f32",
    "bf16_f32",
    "f32_f32",
    "f16_f16",
    "f32_f16",
    "bf16_bf16",
    "f32_bf16",
    "bf16_stochastic",
    "f32_stochastic",
];

/// The types that a variant's name tells.
pub struct Variant {
    pub grad: Kind,
    pub weight: Kind,
    pub copy: Option<Kind>,
    pub stochastic: bool,
}

impl Variant {
    /// The new weight of an element.
    pub fn round(&self, new: f32, noise: Noise, parameter: u32, element: usize) -> f32 {
        if !self.stochastic {
            return self.weight.round(new);
        }
        let bits = new.to_bits() + random_bits(noise, parameter, element);
        f32::from_bits(bits & 0xFFFF_0000)
    }

    pub fn named(name: &str) -> Self {
        let parts: Vec<_> = name.split('_').collect();
        let (weight, copy) = match parts[1..] {
            ["master", copy] => (Kind::F32, Some(Kind::named(copy))),
            [weight] => (Kind::named(weight), None),
            _ => panic!("{name}"),
        };
        let stochastic = parts[1] == "stochastic";
        Self { grad: Kind::named(parts[0]), weight, copy, stochastic }
    }
}

/// Philox4x32-7 (Salmon et al., 2011): the 16 bits of an element.
pub fn random_bits(noise: Noise, parameter: u32, element: usize) -> u32 {
    let mut counter =
        [(element / 8) as u32, parameter, noise.step as u32, (noise.step >> 32) as u32];
    let mut key = [noise.seed as u32, (noise.seed >> 32) as u32];
    for _ in 0..7 {
        let p = u64::from(counter[0]) * 0xD251_1F53;
        let q = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (q >> 32) as u32 ^ counter[1] ^ key[0],
            q as u32,
            (p >> 32) as u32 ^ counter[3] ^ key[1],
            p as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter[element % 8 / 2] >> (16 * (element % 2)) & 0xFFFF
}

/// The new weight and state of one element, from tensor, gradient, weight and state.
type Element = Box<dyn Fn(usize, f32, f32, [f32; 2]) -> (f32, [f32; 2])>;

/// An optimizer: the kernels' settings, and its formula in Rust.
pub struct Rule<S> {
    prefix: &'static str,
    settings: [S; 2],
    progress: Vec<Progress>,
    element: Element,
}

impl<S> Rule<S> {
    /// Compares one kernel.
    pub fn agrees(&self, subject: &Subject, variant: &str, order: u64) -> Checked {
        let types = Variant::named(variant);
        let Variant { grad, weight, copy, .. } = types;
        let kernel = format!("{}_{variant}", self.prefix);
        let noise = Noise { seed: 0x1234_5678_9ABC_DEF0, step: 3 };
        let mut random = Random(1 + variant.len() as u64);
        let mut tensors = Tensors::random(&mut random, grad, weight, copy.unwrap_or(Kind::F32));
        tensors.progress.clone_from(&self.progress);
        tensors.state.factor = 0.75;
        let by_loops = |(t, item)| self.by_loops(t, item, 0.75, &types, noise);
        let expected: Vec<_> = tensors.items.iter().enumerate().map(by_loops).collect();
        let copies: Vec<_> = tensors.items.iter().map(|item| item.copy.values()).collect();
        tensors.update(subject, &kernel, &self.settings, noise, order)?;
        for (t, (item, (weights, states))) in tensors.items.iter().zip(expected).enumerate() {
            same_bits(&format!("{kernel}: weight {t}"), &item.weight.values(), &weights)?;
            for (state, expected) in item.state.iter().zip(states) {
                same_bits(&format!("{kernel}: state {t}"), &state.values(), &expected)?;
            }
            let copied = match copy.filter(|_| item.grad.is_some()) {
                Some(kind) => weights.iter().map(|weight| kind.round(*weight)).collect(),
                None => copies[t].clone(),
            };
            same_bits(&format!("{kernel}: copy {t}"), &item.copy.values(), &copied)?;
        }
        Ok(())
    }

    fn by_loops(
        &self,
        tensor: usize,
        item: &Item,
        factor: f32,
        types: &Variant,
        noise: Noise,
    ) -> (Vec<f32>, [Vec<f32>; 2]) {
        let (mut weights, mut states) =
            (item.weight.values(), item.state.each_ref().map(Array::values));
        let Some(grads) = &item.grad else { return (weights, states) };
        for (i, grad) in grads.values().into_iter().enumerate() {
            let (new, state) =
                (self.element)(tensor, grad * factor, weights[i], [states[0][i], states[1][i]]);
            (states[0][i], states[1][i]) = (state[0], state[1]);
            weights[i] = types.round(new, noise, item.noise, i);
        }
        (weights, states)
    }
}

pub fn progress(steps: [u64; 7], beta: fn(usize) -> [f64; 2]) -> Vec<Progress> {
    let of = |(t, step): (usize, u64)| Progress {
        step,
        correction: beta(t).map(|beta| 1.0 - beta.powi(step as i32)),
    };
    steps.into_iter().enumerate().map(of).collect()
}

/// Adam, or AdamW where `decoupled` is 1.
pub fn adam(decoupled: u32) -> Rule<AdamSettings> {
    let betas = |t: usize| [[0.9, 0.999], [0.5, 0.75]][t % 2];
    let settings = [0, 1].map(|group| AdamSettings {
        lr: 0.01,
        beta: betas(group),
        eps: 1e-8,
        weight_decay: 0.1,
        decoupled,
        reserved: 0,
    });
    let progress = progress([1, 2, 3, 4, 5, 6, 1000], betas);
    let at = progress.clone();
    let element: Element = Box::new(move |t, grad, weight, [m, v]| {
        let [beta1, beta2] = betas(t);
        let (l2, keep) = if decoupled == 1 { (0.0, 1.0 - 0.01 * 0.1) } else { (0.1, 1.0) };
        let g = grad + l2 as f32 * weight;
        let m = beta1 as f32 * m + (1.0 - beta1) as f32 * g;
        let v = beta2 as f32 * v + (1.0 - beta2) as f32 * (g * g);
        let [correction1, correction2] = at[t].correction;
        let root_scale = (1.0 / correction2.sqrt()) as f32;
        let step_size = (0.01 / correction1) as f32;
        (keep as f32 * weight - step_size * (m / (v.sqrt() * root_scale + 1e-8)), [m, v])
    });
    Rule { prefix: "adam", settings, progress, element }
}

/// Adagrad, with decoupled weight decay where `decoupled` is 1.
pub fn adagrad(decoupled: u32) -> Rule<AdagradSettings> {
    let settings = [0.01, 0.5].map(|lr| AdagradSettings {
        lr,
        eps: 1e-10,
        weight_decay: 0.1,
        decoupled,
        reserved: 0,
    });
    let element: Element = Box::new(move |t, grad, weight, [sum, other]| {
        let lr = [0.01, 0.5][t % 2];
        let (l2, keep) = if decoupled == 1 { (0.0, 1.0 - lr * 0.1) } else { (0.1, 1.0) };
        let g = grad + l2 as f32 * weight;
        let sum = sum + g * g;
        let step = lr as f32 * (g / (sum.sqrt() + 1e-10));
        (keep as f32 * weight - step, [sum, other])
    });
    let progress = progress([1, 2, 3, 4, 5, 6, 7], |_| [0.0; 2]);
    Rule { prefix: "adagrad", settings, progress, element }
}

pub fn sgd(momentum: f64, dampening: f64, nesterov: u32) -> Rule<SgdSettings> {
    let settings = [0, 1].map(|_| SgdSettings {
        lr: 0.1,
        momentum,
        dampening,
        weight_decay: 0.01,
        nesterov,
        reserved: 0,
    });
    let progress = progress([1, 2, 1, 4, 1, 6, 7], |_| [0.0; 2]);
    let at = progress.clone();
    let element: Element = Box::new(move |t, grad, weight, [buffer, other]| {
        let g = grad + 0.01f32 * weight;
        if momentum == 0.0 {
            return (weight - 0.1f32 * g, [buffer, other]);
        }
        let fresh = if at[t].step == 1 { 1.0 } else { (1.0 - dampening) as f32 };
        let buffer = momentum as f32 * buffer + fresh * g;
        let direction = if nesterov == 1 { g + momentum as f32 * buffer } else { buffer };
        (weight - 0.1f32 * direction, [buffer, other])
    });
    Rule { prefix: "sgd", settings, progress, element }
}

/// A skipped step changes nothing.
pub fn skipped(subject: &Subject, order: u64) -> Checked {
    let mut tensors = Tensors::random(&mut Random(5), Kind::F16, Kind::F32, Kind::F16);
    tensors.state.skip = 1;
    let all = |tensors: &Tensors| {
        let of = |item: &Item| {
            let [m, v] = item.state.each_ref().map(Array::values);
            [item.weight.values(), item.copy.values(), m, v].concat()
        };
        tensors.items.iter().flat_map(of).collect::<Vec<_>>()
    };
    let before = all(&tensors);
    let (adam, sgd) = ([AdamSettings::default(); 2], [SgdSettings::default(); 2]);
    tensors.update(subject, "adam_f16_master_f16", &adam, Noise::default(), order)?;
    tensors.update(subject, "sgd_f16_master_f16", &sgd, Noise::default(), order)?;
    let lamb = [LambSettings::default(); 2];
    for kernel in ["lamb_moments_f16_f32", "lamb_step_master_f16"] {
        tensors.update(subject, kernel, &lamb, Noise::default(), order)?;
    }
    same_bits("after a skipped step", &all(&tensors), &before)
}
