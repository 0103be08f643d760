//! The random bits of stochastic rounding: Philox4x32-7 (Salmon et al., "Parallel random numbers:
//! as easy as 1, 2, 3", SC 2011).
//!
//! A counter-based generator has no state: the bits of an element are a function of the seed, the
//! step, the parameter and the element's position, whatever device or thread computes them.

use tch::{Device, Kind, TchError, Tensor};

/// Elements that one call of the generator serves, with 16 bits each.
pub(super) const BLOCK: usize = 8;
const ROUNDS: u32 = 7;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The random bits of one parameter in one step.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    pub(super) seed: u64,
    pub(super) step: u64,
    pub(super) parameter: u32,
}

impl Noise {
    /// The bits of a step; [`of`](Self::of) makes them a parameter's.
    pub(crate) fn new(seed: u64, step: u64) -> Self {
        Self { seed, step, parameter: 0 }
    }

    /// Tells parameters apart by a hash of their names (FNV-1a), so that their order is of no
    /// consequence.
    pub(crate) fn of(self, name: &str) -> Self {
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
        Self { parameter: name.bytes().fold(2_166_136_261, hash), ..self }
    }

    /// The bits of elements `8 · block` to `8 · block + 7`, two in a word, the lower half first.
    pub(super) fn block(self, block: u32) -> [u32; 4] {
        let mut counter = [block, self.parameter, low(self.step), high(self.step)];
        for [key0, key1] in self.keys() {
            let [a, b, c, d] = counter;
            let product = |x: u32, factor: u32| u64::from(x) * u64::from(factor);
            let (p, q) = (product(a, MULTIPLIERS[0]), product(c, MULTIPLIERS[1]));
            counter = [high(q) ^ b ^ key0, low(q), high(p) ^ d ^ key1, low(p)];
        }
        counter
    }

    /// The bits of the first `elements` elements, as 64-bit integers.
    pub(super) fn tensor(self, elements: i64, device: Device) -> Result<Tensor, TchError> {
        let blocks = (elements as usize).div_ceil(BLOCK) as i64;
        let options = (Kind::Int64, device);
        let constant = |word: u32| Tensor::f_full([blocks], i64::from(word), options);
        let mut counter = [
            Tensor::f_arange(blocks, options)?,
            constant(self.parameter)?,
            constant(low(self.step))?,
            constant(high(self.step))?,
        ];
        for [key0, key1] in self.keys() {
            let [a, b, c, d] = &counter;
            let (p_high, p_low) = product(a, MULTIPLIERS[0])?;
            let (q_high, q_low) = product(c, MULTIPLIERS[1])?;
            let mix = |x: Tensor, y: &Tensor, key: u32| {
                x.f_bitwise_xor_tensor(y)?.f_bitwise_xor(i64::from(key))
            };
            counter = [mix(q_high, b, key0)?, q_low, mix(p_high, d, key1)?, p_low];
        }
        let mut halves = Vec::with_capacity(BLOCK);
        for word in &counter {
            halves.extend([low_half(word)?, shift_right(word, 16)?]);
        }
        Tensor::f_stack(&halves, 1)?.f_flatten(0, -1)?.f_narrow(0, 0, elements)
    }

    fn keys(self) -> impl Iterator<Item = [u32; 2]> {
        let [step0, step1] = KEY_STEPS;
        let key = move |n: u32| {
            [
                low(self.seed).wrapping_add(step0.wrapping_mul(n)),
                high(self.seed).wrapping_add(step1.wrapping_mul(n)),
            ]
        };
        (0..ROUNDS).map(key)
    }
}

/// The high and low words of the products of 32-bit words, without overflow of 64 bits.
fn product(words: &Tensor, factor: u32) -> Result<(Tensor, Tensor), TchError> {
    let factor = i64::from(factor);
    let upper = shift_right(words, 16)?.f_mul_scalar(factor)?;
    let lower = low_half(words)?.f_mul_scalar(factor)?;
    let high = shift_right(&upper.f_add(&shift_right(&lower, 16)?)?, 16)?;
    let shifted = low_half(&upper)?.f_mul_scalar(1 << 16)?;
    Ok((high, shifted.f_add(&lower)?.f_bitwise_and(i64::from(u32::MAX))?))
}

fn shift_right(words: &Tensor, bits: i64) -> Result<Tensor, TchError> {
    words.f_bitwise_right_shift_tensor_scalar(bits)
}

fn low_half(words: &Tensor) -> Result<Tensor, TchError> {
    words.f_bitwise_and(0xFFFF)
}

fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
