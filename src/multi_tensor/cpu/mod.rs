//! The operations on the CPU: each tensor is cut into chunks, which libtorch's threads work on with
//! the best instructions that the CPU has.
//!
//! Tensors that are not dense are worked on through a dense copy, so that any layout gives the
//! same result. Neither instructions nor threads change a bit of it.

mod accumulate;
mod lamb;
mod norm;
mod simd;
mod update;
mod values;

#[cfg(test)]
pub(super) use accumulate::add;
pub(super) use accumulate::{accumulate, scale};
pub(super) use lamb::first_pass;
pub(super) use norm::{check, largest, squared_norms};
pub(super) use simd::InstructionSet;
pub(super) use update::{round, update};
pub(super) use values::unlike;

use crate::libtorch;

/// Elements in a chunk.
const CHUNK: usize = 65_536;
/// Elements worked on at a time: they stay in the first-level cache.
const BLOCK: usize = 1024;
/// With fewer elements, waking other threads takes longer than the work.
const ALONE: usize = 32_768;

/// Calls `work` for each chunk of an operation on so many elements.
fn for_each<T: Send>(chunks: &mut [T], elements: usize, work: impl Fn(&mut T) + Sync) {
    match elements < ALONE {
        true => chunks.iter_mut().for_each(work),
        false => libtorch::for_each(chunks, work),
    }
}

/// The parts of `len` elements that are worked on at a time.
#[inline(always)]
fn blocks(len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len).step_by(BLOCK).map(move |start| start..len.min(start + BLOCK))
}
