#include "update.cuh"

// b = momentum b + fresh g; w -= lr b
struct Sgd {
    typedef SgdSettings Settings;
    static constexpr u32 STATES = 1;
    float lr, momentum, fresh, weight_decay;
    u32 nesterov;

    static __device__ __forceinline__ Sgd make(const Settings& of, const Progress& at) {
        Sgd rule;
        rule.lr = (float)of.lr;
        rule.momentum = (float)of.momentum;
        // The first gradient enters the momentum whole.
        rule.fresh = at.step == 1 ? 1.0f : (float)(1 - of.dampening);
        rule.weight_decay = (float)of.weight_decay;
        rule.nesterov = of.nesterov;
        return rule;
    }

    __device__ __forceinline__ float element(float grad, float weight, float state[1]) const {
        float& buffer = state[0];
        float g = grad + weight_decay * weight;
        if (momentum == 0) return weight - lr * g;
        buffer = momentum * buffer + fresh * g;
        float direction = nesterov ? g + momentum * buffer : buffer;
        return weight - lr * direction;
    }
};

UPDATE_KERNELS(sgd, 4, Sgd)
