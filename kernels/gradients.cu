// What is done to gradients before the update: check, scale, accumulate; and the decisions alone.

#include "check.cuh"

struct Check {};
struct Scale {
    static constexpr bool ADDS = false;
};
struct Accumulate {
    static constexpr bool ADDS = true;
};

template <class T>
__device__ __forceinline__ void look(Check, const Span<T>& grad, u64, u64 end, float, Partial* to) {
    Seen seen;
    by_eight<4>(grad.aligned, end, [&](bool wide, u64 i) {
        float values[WIDTH];
        load(wide, grad, i, end, values);
        seen.add(values);
    });
    finish_chunk(seen, grad, end, to);
}

// `out = grad * factor` or `out += grad * factor`; the check is of `out`.
template <class T, class Operation>
__device__ __forceinline__ void look(Operation, const Span<T>& grad, u64 out_pointer, u64 end,
                                     float factor, Partial* to) {
    constexpr bool ADDS = Operation::ADDS;
    Span<F32> out(out_pointer, 0);
    Seen seen;
    by_eight(grad.aligned && out.aligned, end, [&](bool wide, u64 i) {
        float values[WIDTH], sum[WIDTH];
        load(wide, grad, i, end, values);
        if (ADDS) load(wide, out, i, end, sum);
#pragma unroll
        for (u32 k = 0; k < WIDTH; k++) {
            float scaled = values[k] * factor;
            values[k] = ADDS ? sum[k] + scaled : scaled;
            // A product with an infinite factor would make a NaN of padding.
            if (!wide && i + k >= end) values[k] = 0;
        }
        store(wide, out, i, end, values);
        seen.add(values);
    });
    finish_chunk(seen, out, end, to);
}

template <class T, class Operation>
__device__ __forceinline__ void each_chunk(Operation operation, const Grads& grads,
                                           const Table& table, const Decision& how, State* state) {
    Partial* partials = (Partial*)table.partials;
    float factor = state->inverse_scale;
    for (u32 c = blockIdx.x; c < table.chunk_count; c += gridDim.x) {
        Chunk chunk = ((const Chunk*)table.chunks)[c];
        Tensor tensor = ((const Tensor*)table.tensors)[chunk.tensor];
        u64 pointer = grads.pointer[chunk.tensor];
        if (!pointer) {
            if (threadIdx.x == 0) partials[c] = Partial{0, 0, 0};
            continue;
        }
        u64 end = chunk_end(table, chunk, tensor.elements);
        u64 out = tensor.copy + chunk.offset * sizeof(float);
        look(operation, Span<T>(pointer, chunk.offset), out, end, factor, partials + c);
    }
    finish_check(grads, table, how, state);
}

#define GRADIENT_KERNEL(name, Type, Operation, blocks)                               \
    KERNEL(name, blocks, const __grid_constant__ Grads grads,                        \
           const __grid_constant__ Table table, const __grid_constant__ Decision how, \
           State* state) {                                                           \
        each_chunk<Type>(Operation{}, grads, table, how, state);                     \
    }

GRADIENT_KERNEL(check_f16, F16, Check, 4)
GRADIENT_KERNEL(check_bf16, Bf16, Check, 4)
GRADIENT_KERNEL(check_f32, F32, Check, 4)
GRADIENT_KERNEL(scale_f16, F16, Scale, 4)
GRADIENT_KERNEL(scale_bf16, Bf16, Scale, 4)
GRADIENT_KERNEL(scale_f32, F32, Scale, 4)
GRADIENT_KERNEL(accumulate_f16, F16, Accumulate, 4)
GRADIENT_KERNEL(accumulate_bf16, Bf16, Accumulate, 4)
GRADIENT_KERNEL(accumulate_f32, F32, Accumulate, 4)

// For one block, after all checks.
KERNEL(decide_step, 1, const __grid_constant__ Grads grads, const __grid_constant__ Table table,
       const __grid_constant__ Decision how, State* state) {
    decide(grads, table, how, state);
}
