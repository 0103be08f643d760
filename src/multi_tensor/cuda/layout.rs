//! Twins of the structs in `kernels/layout.cuh`, which says what they hold.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The most tensors of a launch.
pub const MAX_TENSORS: usize = 4000;
/// The bit of `Partial::found` that tells of a NaN.
pub const FOUND_NAN: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Grads {
    pub pointer: [u64; MAX_TENSORS],
}
const _: () = assert!(size_of::<Grads>() == 32000);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Tensor {
    pub weight: u64,
    pub copy: u64,
    pub state: [u64; 2],
    pub elements: u64,
    pub noise: u32,
    pub group: u32,
}
const _: () = assert!(size_of::<Tensor>() == 48);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Chunk {
    pub offset: u64,
    pub tensor: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<Chunk>() == 16);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Table {
    pub tensors: u64,
    pub chunks: u64,
    pub partials: u64,
    pub chunk_elements: u64,
    pub chunk_count: u32,
    pub tensor_count: u32,
}
const _: () = assert!(size_of::<Table>() == 40);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Partial {
    pub squares: f64,
    pub found: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<Partial>() == 16);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Progress {
    pub step: u64,
    pub correction: [f64; 2],
}
const _: () = assert!(size_of::<Progress>() == 24);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct State {
    pub scale: f64,
    pub norm: f64,
    pub unskipped: u64,
    pub skipped: u64,
    pub skipped_in_a_row: u64,
    pub stuck_in_a_row: u64,
    pub overflows_left: u32,
    pub inverse_scale: f32,
    pub factor: f32,
    pub clip: f32,
    pub skip: u32,
    pub found: u32,
    pub found_in: u32,
    pub ticket: u32,
}
const _: () = assert!(size_of::<State>() == 80);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Decision {
    pub progress: u64,
    pub betas: u64,
    pub growth_factor: f64,
    pub backoff_factor: f64,
    pub min_scale: f64,
    pub max_scale: f64,
    pub max_norm: f64,
    pub growth_interval: u32,
    pub hysteresis: u32,
    pub refill_on_good_step: u32,
    pub dynamic: u32,
    pub scaled: u32,
    pub decide_here: u32,
}
const _: () = assert!(size_of::<Decision>() == 80);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Betas {
    pub beta: [f64; 2],
}
const _: () = assert!(size_of::<Betas>() == 16);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Noise {
    pub seed: u64,
    pub step: u64,
}
const _: () = assert!(size_of::<Noise>() == 16);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct AdamSettings {
    pub lr: f64,
    pub beta: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    pub decoupled: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<AdamSettings>() == 48);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct SgdSettings {
    pub lr: f64,
    pub momentum: f64,
    pub dampening: f64,
    pub weight_decay: f64,
    pub nesterov: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<SgdSettings>() == 40);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct AdagradSettings {
    pub lr: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub decoupled: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<AdagradSettings>() == 32);

#[derive(Debug, Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct LambSettings {
    pub lr: f64,
    pub beta: [f64; 2],
    pub fresh: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub max_grad_norm: f64,
    pub decoupled: u32,
    pub trust: u32,
}
const _: () = assert!(size_of::<LambSettings>() == 64);
