#include "update.cuh"

// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// w = keep w - step_size m / (root_scale sqrt(v) + eps)
struct Adam {
    typedef AdamSettings Settings;
    static constexpr u32 STATES = 2;
    float beta1, fresh1, beta2, fresh2, eps, l2, keep, step_size, root_scale;

    static __device__ __forceinline__ Adam make(const Settings& of, const Progress& at) {
        Adam rule;
        rule.beta1 = (float)of.beta[0];
        rule.fresh1 = (float)(1 - of.beta[0]);
        rule.beta2 = (float)of.beta[1];
        rule.fresh2 = (float)(1 - of.beta[1]);
        rule.eps = (float)of.eps;
        rule.l2 = of.decoupled ? 0.0f : (float)of.weight_decay;
        rule.keep = of.decoupled ? (float)(1 - of.lr * of.weight_decay) : 1.0f;
        rule.step_size = (float)(of.lr / at.correction[0]);
        rule.root_scale = (float)(1 / sqrt(at.correction[1]));
        return rule;
    }

    __device__ __forceinline__ float element(float grad, float weight, float state[2]) const {
        float& m = state[0];
        float& v = state[1];
        float g = grad + l2 * weight;
        m = beta1 * m + fresh1 * g;
        v = beta2 * v + fresh2 * (g * g);
        float denominator = sqrtf(v) * root_scale + eps;
        return keep * weight - step_size * (m / denominator);
    }
};

UPDATE_KERNELS(adam, 2, Adam)
