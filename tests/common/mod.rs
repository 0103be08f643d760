//! What the tests share: small nets, and comparison bit by bit.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod given;

use std::hash::{DefaultHasher, Hash, Hasher};

use tch::{
    Device, Kind, Tensor,
    nn::{self, Module, ModuleT, VarStore},
};

/// The first GPU if `TCH_AMP_TEST_DEVICE` is `cuda`, else the CPU.
pub fn device() -> Device {
    match std::env::var("TCH_AMP_TEST_DEVICE").as_deref() {
        Ok("cuda") => Device::Cuda(0),
        Ok(name) => panic!("TCH_AMP_TEST_DEVICE is {name:?}"),
        Err(_) => Device::Cpu,
    }
}

/// A parameter `w` with the given values, for losses that are linear in it.
#[derive(Debug)]
pub struct Weights(pub Tensor);

impl Module for Weights {
    fn forward(&self, xs: &Tensor) -> Tensor {
        xs * &self.0
    }
}

/// A VarStore with the one parameter `w`, and the module `x ↦ x·w`.
pub fn weights(values: &[f32]) -> (VarStore, Weights) {
    let store = VarStore::new(Device::Cpu);
    let w = store.root().var_copy("w", &Tensor::from_slice(values));
    (store, Weights(w))
}

/// Linear, batch norm, linear: the smallest net with all that the levels treat differently.
#[derive(Debug)]
pub struct Net {
    first: nn::Linear,
    norm: nn::BatchNorm,
    last: nn::Linear,
}

impl Net {
    pub const INPUTS: i64 = 16;
    pub const OUTPUTS: i64 = 4;

    pub fn new(path: &nn::Path) -> Self {
        // A bias before batch norm has no effect: its gradient would be rounding noise.
        let no_bias = nn::LinearConfig { bias: false, ..Default::default() };
        let config = nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..Default::default() };
        Self {
            first: nn::linear(path / "first", Self::INPUTS, 32, no_bias),
            norm: nn::batch_norm1d(path / "norm", 32, config),
            last: nn::linear(path / "last", 32, Self::OUTPUTS, Default::default()),
        }
    }

    /// The net with weights that depend on `seed` only.
    pub fn seeded(seed: u64) -> (VarStore, Self) {
        let store = VarStore::new(Device::Cpu);
        let net = Self::new(&store.root());
        fill(&store, seed);
        (store, net)
    }
}

impl ModuleT for Net {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let hidden = xs.apply(&self.first).apply_t(&self.norm, train).tanh();
        hidden.apply(&self.last)
    }
}

/// A fixed regression problem: `batches` pairs of inputs and targets.
pub fn batches(batches: usize) -> Vec<(Tensor, Tensor)> {
    let truth = noise(1, &[Net::INPUTS, Net::OUTPUTS]);
    let batch = |n| {
        let xs = noise(100 + n as u64, &[32, Net::INPUTS]) * 1.7;
        let ys = xs.mm(&truth).tanh();
        (xs, ys)
    };
    (0..batches).map(batch).collect()
}

/// Values in [-1, 1) that depend on `seed` only: libtorch's generator is shared by all threads.
pub fn noise(seed: u64, shape: &[i64]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_slice(&values).reshape(shape)
}

/// Gives each trainable matrix and vector, batch norm's excepted, values that depend on `seed` only.
pub fn fill(store: &VarStore, seed: u64) {
    let _guard = tch::no_grad_guard();
    let mut variables: Vec<_> = store.variables().into_iter().collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    for (n, (name, mut variable)) in variables.into_iter().enumerate() {
        if !name.starts_with("norm") {
            let size = variable.size();
            let fan_in = size.last().copied().unwrap_or(1) as f64;
            let values = noise(seed * 1000 + n as u64, &size) / fan_in.sqrt();
            variable.copy_(&values);
        }
    }
}

pub fn mse(output: &Tensor, target: &Tensor) -> Tensor {
    (output - target).square().mean(Kind::Float)
}

/// The bytes of a tensor, which print as their number and a hash.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
pub struct Bits(Vec<u8>);

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        write!(f, "{} bytes ({:x})", self.0.len(), hasher.finish())
    }
}

/// The bytes of a tensor of any type.
pub fn bits(tensor: &Tensor) -> Bits {
    let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
    let size = tensor.numel() * tensor.kind().elt_size_in_bytes();
    let mut bytes = vec![0; size];
    tensor.copy_data_u8(&mut bytes, tensor.numel());
    Bits(bytes)
}

/// The values of a tensor of any floating-point type.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float).flatten(0, -1)).unwrap()
}

/// The bytes of all variables, by name.
pub fn snapshot(variables: std::collections::HashMap<String, Tensor>) -> Vec<(String, Bits)> {
    let mut all: Vec<_> = variables.iter().map(|(name, t)| (name.clone(), bits(t))).collect();
    all.sort();
    all
}

/// The largest difference between two lists of values, relative to the largest of `expected`.
pub fn relative_error(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
    let error = actual.iter().zip(expected).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
    f64::from(error) / f64::from(largest)
}
