#include "update.cuh"

// s += g^2; w = keep w - lr g / (sqrt(s) + eps)
struct Adagrad {
    typedef AdagradSettings Settings;
    static constexpr u32 STATES = 1;
    float lr, eps, l2, keep;

    static __device__ __forceinline__ Adagrad make(const Settings& of, const Progress&) {
        Adagrad rule;
        rule.lr = (float)of.lr;
        rule.eps = (float)of.eps;
        rule.l2 = of.decoupled ? 0.0f : (float)of.weight_decay;
        rule.keep = of.decoupled ? (float)(1 - of.lr * of.weight_decay) : 1.0f;
        return rule;
    }

    __device__ __forceinline__ float element(float grad, float weight, float state[1]) const {
        float& sum = state[0];
        float g = grad + l2 * weight;
        sum = sum + g * g;
        return keep * weight - lr * (g / (sqrtf(sum) + eps));
    }
};

UPDATE_KERNELS(adagrad, 4, Adagrad)
