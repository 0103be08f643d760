//! What the tests share: arrays of all types, tables of tensors, random values.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    ffi::c_void,
    ptr::{from_mut, from_ref},
};

use half::{bf16, f16};
use tch_amp_emulator::{
    Betas, Chunk, Decision, Grads, MAX_TENSORS, Noise, Partial, Progress, State, Table, Tensor,
    launch,
};

/// Elements of a chunk: few, so that tensors have several.
pub const CHUNK: usize = 2048;

/// Random numbers (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// In [-1, 1), with denormals and zeros among them.
    pub fn value(&mut self) -> f32 {
        let value = (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        match self.below(16) {
            0 => 0.0,
            1 => value * 1e-6,
            2 => value * f32::MIN_POSITIVE,
            _ => value,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    F16,
    Bf16,
    F32,
}

impl Kind {
    pub fn named(name: &str) -> Self {
        match name {
            "f16" => Self::F16,
            "bf16" | "stochastic" => Self::Bf16,
            "f32" => Self::F32,
            other => panic!("{other}"),
        }
    }

    /// Rounds to nearest, ties to even.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
            Self::F32 => value,
        }
    }
}

/// An array that begins `skip` elements behind 16-byte alignment.
#[derive(Debug, Clone)]
pub struct Array {
    kind: Kind,
    memory: Vec<u128>,
    skip: usize,
    len: usize,
}

impl Array {
    pub fn new(kind: Kind, skip: usize, values: &[f32]) -> Self {
        let len = values.len();
        let mut array = Self { kind, memory: vec![0; (len + skip) / 4 + 2], skip, len };
        values.iter().enumerate().for_each(|(i, &value)| array.set(i, value));
        array
    }

    fn bytes(&self) -> usize {
        if self.kind == Kind::F32 { 4 } else { 2 }
    }

    pub fn address(&mut self) -> u64 {
        self.memory.as_mut_ptr() as u64 + (self.skip * self.bytes()) as u64
    }

    pub fn set(&mut self, i: usize, value: f32) {
        let bits = match self.kind {
            Kind::F16 => u32::from(f16::from_f32(value).to_bits()),
            Kind::Bf16 => u32::from(bf16::from_f32(value).to_bits()),
            Kind::F32 => value.to_bits(),
        };
        let per = 16 / self.bytes();
        let (word, at) = ((i + self.skip) / per, (i + self.skip) % per * self.bytes() * 8);
        let mask = ((1u128 << (self.bytes() * 8)) - 1) << at;
        self.memory[word] = self.memory[word] & !mask | u128::from(bits) << at;
    }

    pub fn get(&self, i: usize) -> f32 {
        let per = 16 / self.bytes();
        let (word, at) = ((i + self.skip) / per, (i + self.skip) % per * self.bytes() * 8);
        let bits = (self.memory[word] >> at) as u32;
        match self.kind {
            Kind::F16 => f16::from_bits(bits as u16).to_f32(),
            Kind::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            Kind::F32 => f32::from_bits(bits),
        }
    }

    pub fn values(&self) -> Vec<f32> {
        (0..self.len).map(|i| self.get(i)).collect()
    }
}

/// One NaN is as good as another.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

/// A tensor with all that kernels may touch.
pub struct Item {
    pub grad: Option<Array>,
    pub weight: Array,
    pub copy: Array,
    pub state: [Array; 2],
    pub noise: u32,
    pub group: u32,
}

/// What is launched on.
pub struct Tensors {
    pub items: Vec<Item>,
    pub progress: Vec<Progress>,
    pub betas: Vec<Betas>,
    pub decision: Decision,
    pub state: State,
    partials: Vec<Partial>,
}

impl Tensors {
    /// Tensors of all sizes, one without a gradient.
    pub fn random(random: &mut Random, grad: Kind, weight: Kind, copy: Kind) -> Self {
        let sizes = [0, 1, 7, 2048, 5003, 300, 4096];
        let mut items = Vec::new();
        for (number, len) in sizes.into_iter().enumerate() {
            let mut array = |kind| {
                let values: Vec<_> = (0..len).map(|_| random.value()).collect();
                let skip = if random.below(3) == 0 { random.below(8) as usize } else { 0 };
                Array::new(kind, skip, &values)
            };
            let (grad, weight, copy) = (array(grad), array(weight), array(copy));
            // A second moment is not negative.
            let (first, second) = (array(Kind::F32), array(Kind::F32));
            let squares: Vec<_> = second.values().iter().map(|v| v * v).collect();
            items.push(Item {
                grad: Some(grad).filter(|_| number != 5),
                weight,
                copy,
                state: [first, Array::new(Kind::F32, second.skip, &squares)],
                noise: number as u32 * 77,
                group: number as u32 % 2,
            });
        }
        let progress = vec![Progress::default(); items.len()];
        let betas = vec![Betas { beta: [0.9, 0.999] }, Betas { beta: [0.5, 0.75] }];
        let decision = Decision {
            growth_factor: 2.0,
            backoff_factor: 0.5,
            min_scale: 1.0,
            max_scale: 65536.0,
            max_norm: f64::INFINITY,
            growth_interval: 2000,
            hysteresis: 1,
            dynamic: 1,
            scaled: 1,
            decide_here: 1,
            ..Decision::default()
        };
        let state =
            State { scale: 4.0, inverse_scale: 0.25, overflows_left: 1, ..State::default() };
        Self { items, progress, betas, decision, state, partials: Vec::new() }
    }

    /// Launches a kernel that looks at gradients.
    pub fn look(&mut self, kernel: &str, seed: u64) {
        self.launch(kernel, seed, |grads, table, decision, state| {
            vec![grads, table, decision, state]
        });
    }

    /// Launches an update with the settings of the groups.
    pub fn update<S>(&mut self, kernel: &str, settings: &[S], mut noise: Noise, seed: u64) {
        let mut settings_at = from_ref(&settings[0]) as u64;
        let mut progress_at = self.progress.as_mut_ptr() as u64;
        self.launch(kernel, seed, |grads, table, _, state| {
            let settings = from_mut(&mut settings_at).cast();
            let progress = from_mut(&mut progress_at).cast();
            vec![grads, table, settings, progress, state, from_mut(&mut noise).cast()]
        });
    }

    fn launch(
        &mut self,
        kernel: &str,
        seed: u64,
        arguments: impl FnOnce(*mut c_void, *mut c_void, *mut c_void, *mut c_void) -> Vec<*mut c_void>,
    ) {
        let mut grads = Box::new(Grads { pointer: [0; MAX_TENSORS] });
        let (mut tensors, mut chunks) = (Vec::new(), Vec::new());
        for (number, item) in self.items.iter_mut().enumerate() {
            grads.pointer[number] = item.grad.as_mut().map_or(0, Array::address);
            let elements = item.weight.len as u64;
            for offset in (0..elements).step_by(CHUNK) {
                chunks.push(Chunk { offset, tensor: number as u32, reserved: 0 });
            }
            tensors.push(Tensor {
                weight: item.weight.address(),
                copy: item.copy.address(),
                state: item.state.each_mut().map(Array::address),
                elements,
                noise: item.noise,
                group: item.group,
            });
        }
        self.partials.resize(chunks.len(), Partial::default());
        let mut table = Table {
            tensors: tensors.as_ptr() as u64,
            chunks: chunks.as_ptr() as u64,
            partials: self.partials.as_mut_ptr() as u64,
            chunk_elements: CHUNK as u64,
            chunk_count: chunks.len() as u32,
            tensor_count: tensors.len() as u32,
        };
        self.decision.progress = self.progress.as_mut_ptr() as u64;
        self.decision.betas = self.betas.as_ptr() as u64;
        let mut state_at = from_mut(&mut self.state) as u64;
        let mut arguments = arguments(
            from_mut(&mut *grads).cast(),
            from_mut(&mut table).cast(),
            from_mut(&mut self.decision).cast(),
            from_mut(&mut state_at).cast(),
        );
        let blocks = if kernel == "decide_step" { 1 } else { 3 };
        // SAFETY: the arguments are those of the kernel, and all they point to outlives the launch.
        unsafe { launch(kernel, blocks, &mut arguments, seed) }.unwrap();
    }
}
