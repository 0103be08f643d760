#include "shim.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <type_traits>
#include <utility>

#include "libtorch_cuda.h"
#include "o1_kernels.h"

namespace {

// The codes that `data.rs` and `autocast.rs` know.
static_assert(static_cast<int>(at::kHalf) == 5);
static_assert(static_cast<int>(at::kFloat) == 6);
static_assert(static_cast<int>(at::kDouble) == 7);
static_assert(static_cast<int>(at::kBFloat16) == 15);

char out_of_memory[] = "out of memory";

char* message(const char* text) noexcept {
  char* copy = strdup(text);
  return copy != nullptr ? copy : out_of_memory;
}

template <class Body>
char* caught(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return message(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return message(error.what());
  } catch (...) {
    return message("an exception of unknown type");
  }
}

bool is_array(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.is_contiguous() && tensor.has_storage() &&
      !tensor.is_neg() && !tensor.is_conj();
}

void* data_of(const at::Tensor& tensor, bool write) {
  if (!write) {
    return const_cast<void*>(tensor.const_data_ptr());
  }
  // A graph that saved the tensor refuses to run backward after this.
  tensor.unsafeGetTensorImpl()->bump_version();
  return tensor.mutable_data_ptr();
}

at::Generator default_generator(const at::Tensor& on_device) {
  return at::globalContext().defaultGenerator(on_device.device());
}

template <at::DeviceType type>
using Device = std::integral_constant<at::DeviceType, type>;

template <class Body>
void on_device(TchAmpDevice device, const Body& body) {
  switch (device) {
    case TCH_AMP_CPU:
      return body(Device<at::kCPU>());
    case TCH_AMP_CUDA:
      return body(Device<at::kCUDA>());
    case TCH_AMP_MPS:
      return body(Device<at::kMPS>());
  }
}

} // namespace

void tch_amp_free_message(char* message) noexcept {
  if (message != out_of_memory) {
    std::free(message);
  }
}

bool tch_amp_grad_enabled() noexcept {
  return at::GradMode::is_enabled();
}

const void* tch_amp_tensor_id(const at::Tensor* tensor) noexcept {
  return tensor->unsafeGetTensorImpl();
}

char* tch_amp_backward(const at::Tensor* loss, bool retain_graph) noexcept {
  return caught([&] { loss->backward({}, retain_graph, false); });
}

at::Tensor* tch_amp_take_grad(const at::Tensor* tensor) noexcept {
  at::Tensor* taken = nullptr;
  char* failure = caught([&] {
    // Reading first: `mutable_grad` would give autograd metadata to a tensor that has none.
    if (tensor->defined() && tensor->unsafeGetTensorImpl()->grad().defined()) {
      taken = new at::Tensor();
      std::swap(*taken, tensor->mutable_grad());
    }
  });
  tch_amp_free_message(failure);
  return taken;
}

char* tch_amp_set_grad(const at::Tensor* tensor, const at::Tensor* grad) noexcept {
  return caught([&] {
    TORCH_CHECK(tensor->defined(), "an undefined tensor has no gradient");
    if (grad == nullptr || !grad->defined()) {
      if (tensor->unsafeGetTensorImpl()->grad().defined()) {
        tensor->mutable_grad().reset();
      }
      return;
    }
    TORCH_CHECK(!grad->is_same(*tensor), "a tensor cannot be its own gradient");
    TORCH_CHECK(
        grad->sizes() == tensor->sizes(), "a gradient of shape ", grad->sizes(), " for a tensor of shape ",
        tensor->sizes());
    TORCH_CHECK(
        grad->device() == tensor->device(), "a gradient on ", grad->device(), " for a tensor on ", tensor->device());
    tensor->mutable_grad() = *grad;
  });
}

bool tch_amp_data(const at::Tensor* tensor, int dtype, bool write, void** data, size_t* len) noexcept {
  bool found = false;
  char* failure = caught([&] {
    if (is_array(*tensor) && tensor->device().is_cpu() &&
        (dtype < 0 || static_cast<int>(tensor->scalar_type()) == dtype)) {
      *data = data_of(*tensor, write);
      *len = static_cast<size_t>(tensor->numel());
      found = true;
    }
  });
  tch_amp_free_message(failure);
  return found;
}

bool tch_amp_memory(const at::Tensor* tensor, bool write, void** data, size_t* len, int* dtype) noexcept {
  bool found = false;
  char* failure = caught([&] {
    if (is_array(*tensor)) {
      *data = data_of(*tensor, write);
      *len = static_cast<size_t>(tensor->numel());
      *dtype = static_cast<int>(tensor->scalar_type());
      found = true;
    }
  });
  tch_amp_free_message(failure);
  return found;
}

char* tch_amp_libtorch_path() noexcept {
  const char* path = tch_amp::libtorch_path();
  return path != nullptr ? message(path) : nullptr;
}

char* tch_amp_generator_state(const at::Tensor* on_device, at::Tensor** state) noexcept {
  return caught([&] {
    at::Generator generator = default_generator(*on_device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    *state = new at::Tensor(generator.get_state());
  });
}

char* tch_amp_set_generator_state(const at::Tensor* on_device, const at::Tensor* state) noexcept {
  return caught([&] {
    at::Generator generator = default_generator(*on_device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
  });
}

char* tch_amp_register_o1_lists(TchAmpDevice device) noexcept {
  return caught([&] {
    on_device(device, [](auto type) { tch_amp::register_o1_lists<type()>(); });
  });
}

void tch_amp_autocast_get(TchAmpDevice device, TchAmpAutocast* state) noexcept {
  on_device(device, [&](auto type) {
    state->dtype = static_cast<int>(at::autocast::get_autocast_dtype(type));
    state->enabled = at::autocast::is_autocast_enabled(type);
    state->o1_lists = tch_amp::o1_lists<type()>;
  });
}

void tch_amp_autocast_set(TchAmpDevice device, const TchAmpAutocast* state) noexcept {
  on_device(device, [&](auto type) {
    at::autocast::set_autocast_enabled(type, state->enabled);
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(state->dtype));
    tch_amp::o1_lists<type()> = state->o1_lists;
  });
}

bool tch_amp_cast_cache() noexcept {
  return at::autocast::is_autocast_cache_enabled();
}

void tch_amp_set_cast_cache(bool enabled) noexcept {
  at::autocast::set_autocast_cache_enabled(enabled);
}

void tch_amp_autocast_nest() noexcept {
  at::autocast::increment_nesting();
}

void tch_amp_autocast_unnest() noexcept {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
}
