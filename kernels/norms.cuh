// Figures of whole tensors, from those of their chunks. All chunks of a tensor lie side by side, and
// the first keeps the tensor's figure.
#pragma once

#include "access.cuh"
#include "reduce.cuh"

// What a pass over weights found in one chunk, in the place of its `Partial`: sums of squares.
struct Norms {
    double weight;
    double direction;
};
static_assert(sizeof(Norms) == sizeof(Partial), "");

__device__ __forceinline__ u32 first_chunk(const Table& table, u32 c, u64 offset) {
    return c - (u32)(offset / table.chunk_elements);
}

__device__ __forceinline__ u32 chunks_of(const Table& table, const Tensor& tensor) {
    return (u32)((tensor.elements + table.chunk_elements - 1) / table.chunk_elements);
}

// In FP64, where squares of FP32 are exact and stay finite.
__device__ __forceinline__ double square(float value) { return (double)value * (double)value; }
