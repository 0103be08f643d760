//! Kinds of GPUs, and how many blocks of a kernel one of their multiprocessors runs at a time.

use super::sass::Resources;

/// Threads of every kernel's blocks, as `kernels/layout.cuh` has it.
pub(super) const THREADS: u32 = 256;
/// Threads of a warp.
pub(super) const WARP: u32 = 32;

/// What a multiprocessor has: "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++ Programming Guide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    /// The architecture's name.
    pub(super) name: &'static str,
    /// The most threads at a time.
    threads: u32,
    /// The most blocks at a time.
    blocks: u32,
    /// Bytes of shared memory.
    shared: u32,
}

/// The kinds of GPUs that kernels are compiled for: Turing, Ampere, Hopper and Blackwell.
pub(super) const GPUS: [Gpu; 4] = [
    Gpu { name: "sm_75", threads: 1024, blocks: 16, shared: 64 << 10 },
    Gpu { name: "sm_80", threads: 2048, blocks: 32, shared: 164 << 10 },
    Gpu { name: "sm_90", threads: 2048, blocks: 32, shared: 228 << 10 },
    Gpu { name: "sm_100", threads: 2048, blocks: 32, shared: 228 << 10 },
];

/// Each has its own registers; a warp stays with one.
const SCHEDULERS: u32 = 4;
/// Registers of a scheduler.
const REGISTERS: u32 = 16 << 10;
/// A warp gets registers in units of this.
const REGISTER_UNIT: u32 = 256;
/// Shared memory that CUDA takes of each block, and more than the unit that blocks get it in.
const RESERVED: u32 = 1 << 10;

impl Gpu {
    /// Returns how many blocks of a kernel run at a time.
    pub(super) fn blocks(&self, resources: &Resources) -> u32 {
        let of_warp = (resources.registers * WARP).next_multiple_of(REGISTER_UNIT);
        let warps = SCHEDULERS * (REGISTERS / of_warp);
        let of_block = resources.shared.next_multiple_of(RESERVED) + RESERVED;
        let limits = [warps * WARP / THREADS, self.shared / of_block, self.threads / THREADS];
        limits.into_iter().fold(self.blocks, u32::min)
    }

    /// Returns the most blocks of any kernel.
    pub(super) fn most_blocks(&self) -> u32 {
        self.blocks.min(self.threads / THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(gpu: usize, registers: u32, shared: u32) -> u32 {
        GPUS[gpu].blocks(&Resources { registers, shared, ..Resources::default() })
    }

    /// What `cuda_occupancy.h` of CUDA 13.0 says.
    #[test]
    fn registers_bound_the_blocks() {
        let expected =
            [(28, 8), (32, 8), (33, 6), (56, 4), (64, 4), (65, 3), (75, 3), (80, 3), (81, 2)];
        for (registers, expected) in expected {
            assert_eq!(blocks(2, registers, 32), expected, "{registers}");
        }
        assert_eq!(blocks(0, 28, 32), 4, "a Turing multiprocessor has 1024 threads");
    }

    #[test]
    fn shared_memory_bounds_the_blocks() {
        assert_eq!(blocks(2, 32, 56 << 10), 4);
        assert_eq!(blocks(1, 32, 80 << 10), 2);
        assert_eq!(blocks(0, 32, 40 << 10), 1);
    }
}
