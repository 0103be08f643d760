// The fused update: gradient, weight and state are read once and written once.
//
// A rule has `STATES` tensors of state, `Settings` that `make` turns into the rule of one tensor,
// and `element`, the formula.
#pragma once

#include "access.cuh"
#include "noise.cuh"

// Which weights are written.
template <class T>
struct Master {
    // An FP32 master, and the model's weight of type `T` beside it.
    typedef F32 Type;
    typedef T Copy;
    static constexpr bool COPIES = true, STOCHASTIC = false;
};
template <class T>
struct Plain {
    typedef T Type;
    typedef F32 Copy;
    static constexpr bool COPIES = false, STOCHASTIC = false;
};
struct Stochastic {
    typedef Bf16 Type;
    typedef F32 Copy;
    static constexpr bool COPIES = false, STOCHASTIC = true;
};

__device__ __forceinline__ void encode_randomly(const float values[WIDTH], const u32 words[4],
                                                u16 bits[WIDTH]) {
#pragma unroll
    for (u32 k = 0; k < WIDTH; k++) {
        bits[k] = Bf16::encode(values[k], words[k / 2] >> 16 * (k % 2) & 0xFFFF);
    }
}

// Writes new weights and their copies from `i` on; `offset` is that of the chunk in its tensor.
template <class Weight>
__device__ __forceinline__ void write_weights(bool wide, const Span<typename Weight::Type>& weights,
                                              const Span<typename Weight::Copy>& copies, u64 i,
                                              u64 end, const float values[WIDTH], Noise noise,
                                              u32 parameter, u64 offset) {
    if constexpr (Weight::STOCHASTIC) {
        u32 words[4];
        u16 bits[WIDTH];
        random_block(noise, parameter, (u32)((offset + i) / WIDTH), words);
        encode_randomly(values, words, bits);
        store_bits(wide, weights, i, end, bits);
    } else {
        store(wide, weights, i, end, values);
    }
    if constexpr (Weight::COPIES) store(wide, copies, i, end, values);
}

// The pieces of a tensor that one chunk updates.
template <class Rule, class Grad, class Weight>
struct Update {
    typedef typename Weight::Type Type;
    typedef typename Weight::Copy Copy;

    const Rule& rule;
    Span<Grad> grads;
    Span<Type> weights;
    Span<Copy> copies;
    u64 state[Rule::STATES];
    u64 offset;
    float factor;
    Noise noise;
    u32 parameter;

    __device__ __forceinline__ Update(const Rule& rule, const Tensor& tensor, u64 grad, u64 offset,
                                      float factor, Noise noise)
        : rule(rule), grads(grad, offset), weights(tensor.weight, offset),
          copies(tensor.copy, offset), offset(offset), factor(factor), noise(noise),
          parameter(tensor.noise) {
#pragma unroll
        for (u32 s = 0; s < Rule::STATES; s++) state[s] = tensor.state[s];
    }

    __device__ __forceinline__ Span<F32> states(u32 s) const {
        return Span<F32>(state[s], offset);
    }

    __device__ __forceinline__ bool aligned() const {
        bool all = grads.aligned && weights.aligned && (!Weight::COPIES || copies.aligned);
#pragma unroll
        for (u32 s = 0; s < Rule::STATES; s++) all = all && states(s).aligned;
        return all;
    }

    // Elements `i` to `i + 7`, which are aligned.
    __device__ __forceinline__ void eight(u64 i) const {
        float grad[WIDTH], weight[WIDTH], old[Rule::STATES][WIDTH];
        unpack(grads, i, grad);
        unpack(weights, i, weight);
#pragma unroll
        for (u32 s = 0; s < Rule::STATES; s++) unpack(states(s), i, old[s]);
#pragma unroll
        for (u32 k = 0; k < WIDTH; k++) {
            float one[Rule::STATES];
#pragma unroll
            for (u32 s = 0; s < Rule::STATES; s++) one[s] = old[s][k];
            weight[k] = rule.element(grad[k] * factor, weight[k], one);
#pragma unroll
            for (u32 s = 0; s < Rule::STATES; s++) old[s][k] = one[s];
        }
#pragma unroll
        for (u32 s = 0; s < Rule::STATES; s++) pack(states(s), i, old[s]);
        write_weights<Weight>(true, weights, copies, i, i + WIDTH, weight, noise, parameter, offset);
    }

    __device__ __forceinline__ void one(u64 i) const {
        float old[Rule::STATES];
#pragma unroll
        for (u32 s = 0; s < Rule::STATES; s++) old[s] = states(s).first[i];
        float weight = Type::decode(weights.first[i]);
        weight = rule.element(Grad::decode(grads.first[i]) * factor, weight, old);
#pragma unroll
        for (u32 s = 0; s < Rule::STATES; s++) states(s).first[i] = old[s];
        if constexpr (Weight::STOCHASTIC) {
            u32 words[4];
            random_block(noise, parameter, (u32)((offset + i) / WIDTH), words);
            // An index into the words would put them into local memory.
            u32 low = i & 2 ? words[1] : words[0], high = i & 2 ? words[3] : words[2];
            u32 word = i & 4 ? high : low;
            weights.first[i] = Bf16::encode(weight, (i & 1 ? word >> 16 : word) & 0xFFFF);
        } else {
            weights.first[i] = Type::encode(weight);
        }
        if constexpr (Weight::COPIES) copies.first[i] = Copy::encode(weight);
    }

    __device__ __forceinline__ void run(u64 end) const {
        u64 whole = aligned() ? end / WIDTH * WIDTH : 0;
        for (u64 i = threadIdx.x * WIDTH; i < whole; i += THREADS * WIDTH) eight(i);
        for (u64 i = whole + threadIdx.x; i < end; i += THREADS) one(i);
    }
};

template <class Rule, class Grad, class Weight>
__device__ __forceinline__ void update(const Grads& grads, const Table& table, u64 settings,
                                       u64 progress, const State* step, Noise noise) {
    if (step->skip) return;
    __shared__ Rule rule;
    float factor = step->factor;
    u32 ready = ~0u;
    for (u32 c = blockIdx.x; c < table.chunk_count; c += gridDim.x) {
        Chunk chunk = ((const Chunk*)table.chunks)[c];
        u64 pointer = grads.pointer[chunk.tensor];
        if (!pointer) continue;
        Tensor tensor = ((const Tensor*)table.tensors)[chunk.tensor];
        if (ready != chunk.tensor) {
            // Not before all threads are done with the rule of the tensor before.
            __syncthreads();
            if (threadIdx.x == 0) {
                const auto* all = (const typename Rule::Settings*)settings;
                rule = Rule::make(all[tensor.group], ((const Progress*)progress)[chunk.tensor]);
            }
            __syncthreads();
            ready = chunk.tensor;
        }
        u64 end = chunk_end(table, chunk, tensor.elements);
        Update<Rule, Grad, Weight>(rule, tensor, pointer, chunk.offset, factor, noise).run(end);
    }
}

#define UPDATE_KERNEL(name, blocks, Rule, Grad, ...)                                      \
    KERNEL(name, blocks, const __grid_constant__ Grads grads,                             \
           const __grid_constant__ Table table, u64 settings, u64 progress,               \
           const State* step, const __grid_constant__ Noise noise) {                      \
        update<Rule, Grad, __VA_ARGS__>(grads, table, settings, progress, step, noise);   \
    }

// A kernel for each type of gradient with each weight it occurs with.
#define UPDATE_KERNELS(prefix, blocks, Rule)                                       \
    UPDATE_KERNEL(prefix##_f16_master_f16, blocks, Rule, F16, Master<F16>)         \
    UPDATE_KERNEL(prefix##_bf16_master_bf16, blocks, Rule, Bf16, Master<Bf16>)     \
    UPDATE_KERNEL(prefix##_f32_master_f16, blocks, Rule, F32, Master<F16>)         \
    UPDATE_KERNEL(prefix##_f32_master_bf16, blocks, Rule, F32, Master<Bf16>)       \
    UPDATE_KERNEL(prefix##_f16_f32, blocks, Rule, F16, Plain<F32>)                 \
    UPDATE_KERNEL(prefix##_bf16_f32, blocks, Rule, Bf16, Plain<F32>)               \
    UPDATE_KERNEL(prefix##_f32_f32, blocks, Rule, F32, Plain<F32>)                 \
    UPDATE_KERNEL(prefix##_f16_f16, blocks, Rule, F16, Plain<F16>)                 \
    UPDATE_KERNEL(prefix##_f32_f16, blocks, Rule, F32, Plain<F16>)                 \
    UPDATE_KERNEL(prefix##_bf16_bf16, blocks, Rule, Bf16, Plain<Bf16>)             \
    UPDATE_KERNEL(prefix##_f32_bf16, blocks, Rule, F32, Plain<Bf16>)               \
    UPDATE_KERNEL(prefix##_bf16_stochastic, blocks, Rule, Bf16, Stochastic)        \
    UPDATE_KERNEL(prefix##_f32_stochastic, blocks, Rule, F32, Stochastic)
