// Lamb, in launches that follow each other: check (of `gradients.cu`), `lamb_grad_norm`,
// `lamb_moments`, `lamb_norms`, and `lamb_step`. The direction is computed twice rather than kept.
#include "norms.cuh"
#include "update.cuh"

// g = grad factor + l2 w; m = beta1 m + fresh1 g; v = beta2 v + fresh2 g^2;
// u = unbias m / (root_scale sqrt(v) + eps) + decay w; w -= lr r u, where r = |w| / |u|
struct Lamb {
    float beta1, fresh1, beta2, fresh2, unbias, root_scale, eps, l2, decay, factor;

    static __device__ __forceinline__ Lamb make(const LambSettings& of, const Progress& at,
                                                const State& step) {
        Lamb rule;
        rule.beta1 = (float)of.beta[0];
        rule.fresh1 = (float)of.fresh;
        rule.beta2 = (float)of.beta[1];
        rule.fresh2 = (float)(1 - of.beta[1]);
        rule.unbias = (float)(1 / at.correction[0]);
        rule.root_scale = (float)(1 / sqrt(at.correction[1]));
        rule.eps = (float)of.eps;
        rule.l2 = of.decoupled ? 0.0f : (float)of.weight_decay;
        rule.decay = of.decoupled ? (float)of.weight_decay : 0.0f;
        double clip = step.norm * step.factor / of.max_grad_norm;
        rule.factor = (float)(step.factor / (clip > 1 ? clip : 1));
        return rule;
    }

    __device__ __forceinline__ void moments(float grad, float weight, float& m, float& v) const {
        float g = grad * factor + l2 * weight;
        m = beta1 * m + fresh1 * g;
        v = beta2 * v + fresh2 * (g * g);
    }

    __device__ __forceinline__ float direction(float weight, float m, float v) const {
        return unbias * m / (sqrtf(v) * root_scale + eps) + decay * weight;
    }
};

// The chunks of a block, each with the rule of its tensor.
template <class Work>
__device__ __forceinline__ void lamb_chunks(const Grads& grads, const Table& table, u64 settings,
                                            u64 progress, const State* step, Work work) {
    if (step->skip) return;
    for (u32 c = blockIdx.x; c < table.chunk_count; c += gridDim.x) {
        Chunk chunk = ((const Chunk*)table.chunks)[c];
        u64 grad = grads.pointer[chunk.tensor];
        if (!grad) continue;
        Tensor tensor = ((const Tensor*)table.tensors)[chunk.tensor];
        const LambSettings& of = ((const LambSettings*)settings)[tensor.group];
        Lamb rule = Lamb::make(of, ((const Progress*)progress)[chunk.tensor], *step);
        work(rule, of, tensor, grad, c, chunk.offset, chunk_end(table, chunk, tensor.elements));
    }
}

template <class Grad, class Weight>
__device__ __forceinline__ void lamb_moments(const Grads& grads, const Table& table, u64 settings,
                                             u64 progress, const State* step) {
    auto work = [&](const Lamb& rule, const LambSettings&, const Tensor& tensor, u64 pointer, u32 c,
                    u64 offset, u64 end) {
        Span<Grad> grad(pointer, offset);
        Span<Weight> weight(tensor.weight, offset);
        Span<F32> first(tensor.state[0], offset), second(tensor.state[1], offset);
        bool aligned = grad.aligned && weight.aligned && first.aligned && second.aligned;
        Norms seen{0, 0};
        by_eight(aligned, end, [&](bool wide, u64 i) {
            float g[WIDTH], w[WIDTH], m[WIDTH], v[WIDTH];
            load(wide, grad, i, end, g);
            load(wide, weight, i, end, w);
            load(wide, first, i, end, m);
            load(wide, second, i, end, v);
#pragma unroll
            for (u32 k = 0; k < WIDTH; k++) {
                rule.moments(g[k], w[k], m[k], v[k]);
                // Without an epsilon, the direction of padding is not a number.
                if (i + k >= end) continue;
                seen.weight += square(w[k]);
                seen.direction += square(rule.direction(w[k], m[k], v[k]));
            }
            store(wide, first, i, end, m);
            store(wide, second, i, end, v);
        });
        double weights = block_sum(seen.weight), directions = block_sum(seen.direction);
        if (threadIdx.x == 0) ((Norms*)table.partials)[c] = Norms{weights, directions};
    };
    lamb_chunks(grads, table, settings, progress, step, work);
}

template <class Weight>
__device__ __forceinline__ void lamb_step(const Grads& grads, const Table& table, u64 settings,
                                          u64 progress, const State* step, Noise noise) {
    typedef typename Weight::Type Type;
    typedef typename Weight::Copy Copy;
    auto work = [&](const Lamb& rule, const LambSettings& of, const Tensor& tensor, u64, u32 c,
                    u64 offset, u64 end) {
        const Norms& norms = ((const Norms*)table.partials)[first_chunk(table, c, offset)];
        double ratio = sqrt(norms.weight) / sqrt(norms.direction);
        if (!of.trust || !(norms.weight > 0 && norms.direction > 0)) ratio = 1;
        float step_size = (float)(of.lr * ratio);
        Span<Type> weights(tensor.weight, offset);
        Span<Copy> copies(tensor.copy, offset);
        Span<F32> first(tensor.state[0], offset), second(tensor.state[1], offset);
        bool aligned = weights.aligned && (!Weight::COPIES || copies.aligned) && first.aligned &&
                       second.aligned;
        by_eight(aligned, end, [&](bool wide, u64 i) {
            float w[WIDTH], m[WIDTH], v[WIDTH];
            load(wide, weights, i, end, w);
            load(wide, first, i, end, m);
            load(wide, second, i, end, v);
#pragma unroll
            for (u32 k = 0; k < WIDTH; k++) w[k] -= step_size * rule.direction(w[k], m[k], v[k]);
            write_weights<Weight>(wide, weights, copies, i, end, w, noise, tensor.noise, offset);
        });
    };
    lamb_chunks(grads, table, settings, progress, step, work);
}

// For one block, after the check of each list of gradients: adds up the norm of all.
KERNEL(lamb_grad_norm, 1, const __grid_constant__ Table table, State* step) {
    const Partial* partials = (const Partial*)table.partials;
    double squares = 0;
    for (u32 c = threadIdx.x; c < table.chunk_count; c += THREADS) squares += partials[c].squares;
    squares = block_sum(squares);
    if (threadIdx.x == 0) step->norm = sqrt(step->norm * step->norm + squares);
}

// The norms of each tensor, by the block that comes to its first chunk.
KERNEL(lamb_norms, 4, const __grid_constant__ Table table, const State* step) {
    if (step->skip) return;
    Norms* norms = (Norms*)table.partials;
    for (u32 c = blockIdx.x; c < table.chunk_count; c += gridDim.x) {
        Chunk chunk = ((const Chunk*)table.chunks)[c];
        if (chunk.offset) continue;
        u32 chunks = chunks_of(table, ((const Tensor*)table.tensors)[chunk.tensor]);
        Norms sum{0, 0};
        for (u32 k = threadIdx.x; k < chunks; k += THREADS) {
            sum.weight += norms[c + k].weight;
            sum.direction += norms[c + k].direction;
        }
        sum.weight = block_sum(sum.weight);
        sum.direction = block_sum(sum.direction);
        if (threadIdx.x == 0) norms[c] = sum;
    }
}

#define LAMB_KERNEL(name, call)                                                           \
    KERNEL(name, 2, const __grid_constant__ Grads grads,                                  \
           const __grid_constant__ Table table, u64 settings, u64 progress,               \
           const State* step, const __grid_constant__ Noise noise) {                      \
        call;                                                                             \
    }
#define LAMB_MOMENTS(name, Grad, Weight) \
    LAMB_KERNEL(name, (lamb_moments<Grad, Weight>(grads, table, settings, progress, step)))
#define LAMB_STEP(name, ...) \
    LAMB_KERNEL(name, (lamb_step<__VA_ARGS__>(grads, table, settings, progress, step, noise)))

// By the types of gradient and weight.
LAMB_MOMENTS(lamb_moments_f16_f32, F16, F32)
LAMB_MOMENTS(lamb_moments_bf16_f32, Bf16, F32)
LAMB_MOMENTS(lamb_moments_f32_f32, F32, F32)
LAMB_MOMENTS(lamb_moments_f16_f16, F16, F16)
LAMB_MOMENTS(lamb_moments_f32_f16, F32, F16)
LAMB_MOMENTS(lamb_moments_bf16_bf16, Bf16, Bf16)
LAMB_MOMENTS(lamb_moments_f32_bf16, F32, Bf16)
// By the weights that are written.
LAMB_STEP(lamb_step_master_f16, Master<F16>)
LAMB_STEP(lamb_step_master_bf16, Master<Bf16>)
LAMB_STEP(lamb_step_f32, Plain<F32>)
LAMB_STEP(lamb_step_f16, Plain<F16>)
LAMB_STEP(lamb_step_bf16, Plain<Bf16>)
LAMB_STEP(lamb_step_stochastic, Stochastic)
