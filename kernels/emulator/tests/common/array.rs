//! Random numbers, and arrays of them in memory.

use std::{env, fmt};

use half::{bf16, f16};

use super::Checked;

/// Set where memory beyond an array's end is watched from outside.
pub const SANITIZED: &str = "TCH_AMP_SANITIZED_KERNELS";

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

impl fmt::Display for Kind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        })
    }
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::F32];

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

    fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}

/// What is around arrays: huge numbers of all kinds, which no sum overlooks.
const AROUND: u8 = 0x7B;

/// An array that begins `skip` elements behind 16-byte alignment.
pub struct Array {
    kind: Kind,
    memory: Vec<u8>,
    skip: usize,
    pub len: usize,
}

impl Array {
    pub fn new(kind: Kind, skip: usize, values: &[f32]) -> Self {
        let len = values.len();
        // A sanitizer sees what is behind the last byte that was asked for.
        let behind = if env::var_os(SANITIZED).is_some() { 0 } else { 32 };
        let memory = vec![AROUND; (skip + len) * kind.bytes() + behind];
        let aligned = memory.is_empty() || memory.as_ptr().addr().is_multiple_of(16);
        assert!(aligned, "malloc aligns to 16 bytes");
        let mut array = Self { kind, memory, skip, len };
        values.iter().enumerate().for_each(|(i, &value)| array.set(i, value));
        array
    }

    /// Of the same kind and alignment.
    pub fn with(&self, values: &[f32]) -> Self {
        Self::new(self.kind, self.skip, values)
    }

    pub fn address(&mut self) -> u64 {
        self.memory.as_mut_ptr() as u64 + self.place(0) as u64
    }

    fn place(&self, i: usize) -> usize {
        (self.skip + i) * self.kind.bytes()
    }

    pub fn set(&mut self, i: usize, value: f32) {
        let place = self.place(i);
        let at = &mut self.memory[place..];
        match self.kind {
            Kind::F16 => at[..2].copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
            Kind::Bf16 => at[..2].copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
            Kind::F32 => at[..4].copy_from_slice(&value.to_ne_bytes()),
        }
    }

    pub fn get(&self, i: usize) -> f32 {
        let at = &self.memory[self.place(i)..];
        match self.kind {
            Kind::F16 => f16::from_ne_bytes([at[0], at[1]]).to_f32(),
            Kind::Bf16 => bf16::from_ne_bytes([at[0], at[1]]).to_f32(),
            Kind::F32 => f32::from_ne_bytes([at[0], at[1], at[2], at[3]]),
        }
    }

    pub fn values(&self) -> Vec<f32> {
        (0..self.len).map(|i| self.get(i)).collect()
    }

    /// Nothing was written around it.
    pub fn intact(&self) -> Checked {
        let (before, behind) =
            (&self.memory[..self.place(0)], &self.memory[self.place(self.len)..]);
        match before.iter().chain(behind).all(|&byte| byte == AROUND) {
            true => Ok(()),
            false => Err("something was written outside of an array".into()),
        }
    }
}
