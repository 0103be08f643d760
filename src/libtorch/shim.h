// The C interface between the crate and libtorch's C++.
//
// Tensors are `at::Tensor*`, as in torch-sys. No exception crosses it: a function that can fail returns null, or a
// message for `tch_amp_free_message`. `ffi.rs` is its twin in Rust.
#pragma once

#include <stddef.h>

namespace at {
class Tensor;
}

extern "C" {

// Devices whose operations autocast can cast.
enum TchAmpDevice : int { TCH_AMP_CPU = 0, TCH_AMP_CUDA = 1, TCH_AMP_MPS = 2 };

// What autocast does on this thread to the operations of one device.
struct TchAmpAutocast {
  int dtype;     // at::ScalarType
  bool enabled;
  bool o1_lists; // what libtorch's own lists lack is in force
};

void tch_amp_free_message(char* message) noexcept;

bool tch_amp_grad_enabled() noexcept;
const void* tch_amp_tensor_id(const at::Tensor* tensor) noexcept;
char* tch_amp_backward(const at::Tensor* loss, bool retain_graph) noexcept;
// Returns a new tensor, or null if there is no gradient.
at::Tensor* tch_amp_take_grad(const at::Tensor* tensor) noexcept;
// A null `grad` removes the gradient.
char* tch_amp_set_grad(const at::Tensor* tensor, const at::Tensor* grad) noexcept;
// Returns false unless the tensor is a row-major array of `dtype` in the CPU's memory; a negative `dtype` stands for any.
bool tch_amp_data(const at::Tensor* tensor, int dtype, bool write, void** data, size_t* len) noexcept;

// Returns false unless the tensor is a row-major array, on any device; `data` is an address of that device.
bool tch_amp_memory(const at::Tensor* tensor, bool write, void** data, size_t* len, int* dtype) noexcept;

// The path of libtorch's own library, for `tch_amp_free_message`; null where it cannot be told.
char* tch_amp_libtorch_path() noexcept;

// The state of the random-number generator that libtorch uses by default on the tensor's device.
char* tch_amp_generator_state(const at::Tensor* on_device, at::Tensor** state) noexcept;
char* tch_amp_set_generator_state(const at::Tensor* on_device, const at::Tensor* state) noexcept;

// Without it, `o1_lists` has no effect.
char* tch_amp_register_o1_lists(TchAmpDevice device) noexcept;
void tch_amp_autocast_get(TchAmpDevice device, TchAmpAutocast* state) noexcept;
void tch_amp_autocast_set(TchAmpDevice device, const TchAmpAutocast* state) noexcept;
bool tch_amp_cast_cache() noexcept;
void tch_amp_set_cast_cache(bool enabled) noexcept;
// Counts the regions that this thread is in.
void tch_amp_autocast_nest() noexcept;
// Clears the cast cache when the thread leaves its last region.
void tch_amp_autocast_unnest() noexcept;
}
