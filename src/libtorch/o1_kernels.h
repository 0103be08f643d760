// Completes libtorch's autocast to the O1 lists.
//
// A registration is for the whole process, so the kernels here act only on threads that are in one of our regions, and
// are fallthroughs anywhere else.
#pragma once

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "o1_lists.h"

namespace tch_amp {

// Whether the lists are in force on this thread for operations of the device.
template <at::DeviceType device>
inline thread_local bool o1_lists = false;

namespace detail {

template <at::DeviceType device>
constexpr c10::DispatchKey autocast_key() {
  static_assert(device == at::kCPU || device == at::kCUDA || device == at::kMPS);
  return device == at::kCPU ? c10::DispatchKey::AutocastCPU
      : device == at::kCUDA ? c10::DispatchKey::AutocastCUDA
                            : c10::DispatchKey::AutocastMPS;
}

// The arguments of a call, on the stack.
struct Arguments {
  c10::IValue* first;
  size_t count;

  c10::IValue* begin() const { return first; }
  c10::IValue* end() const { return first + count; }
  c10::IValue& operator[](size_t index) const { return first[index]; }
  Arguments without_first() const { return {first + 1, count - 1}; }
};

// Calls `visit` on each tensor among the arguments, also on those in lists.
template <class Visit>
void each_tensor(Arguments args, const Visit& visit) {
  for (const auto& arg : args) {
    if (arg.isTensor()) {
      visit(arg.toTensor());
    } else if (arg.isTensorList()) {
      for (const at::Tensor& tensor : arg.toTensorVector()) {
        visit(tensor);
      }
    }
  }
}

// Casts by libtorch's rule: floating-point tensors of the device, except doubles. Replaces lists, since a list may
// belong to the caller.
inline void cast(Arguments args, at::ScalarType type, at::DeviceType device) {
  for (auto& arg : args) {
    if (arg.isTensor()) {
      arg = at::autocast::cached_cast(type, arg.toTensor(), device);
    } else if (arg.isTensorList()) {
      arg = at::autocast::cached_cast(type, at::TensorList(arg.toTensorVector()), device);
    }
  }
}

// Unlike libtorch, which refuses a third type (FP16 in a BF16 region), takes the type that holds them all: FP32.
inline at::ScalarType widest(Arguments args, at::DeviceType device) {
  const auto low = at::autocast::get_autocast_dtype(device);
  auto type = low;
  each_tensor(args, [&](const at::Tensor& tensor) {
    if (at::autocast::is_eligible(tensor, device) && tensor.scalar_type() != low) {
      type = at::kFloat;
    }
  });
  return type;
}

inline void set_dtype(const c10::FunctionSchema& schema, Arguments args, at::DeviceType device) {
  const auto index = schema.argumentIndexWithName("dtype");
  if (index.has_value() && args[*index].isNone() && at::autocast::is_eligible(args[0].toTensor(), device)) {
    args[*index] = at::kFloat;
  }
}

inline void append_dtype(
    const c10::OperatorHandle& op, torch::jit::Stack* stack, Arguments args, at::DeviceType device) {
  const auto& name = op.operator_name();
  const auto overload = name.overload_name == "Scalar" ? "ScalarOpt_dtype" : name.overload_name + "_dtype";
  const auto first = args[0].toTensor();
  torch::jit::push(*stack, at::autocast::is_eligible(first, device) ? at::kFloat : first.scalar_type());
  c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), overload.c_str()).callBoxed(stack);
}

template <at::DeviceType device, Policy policy>
void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr auto key = autocast_key<device>();
  if (!o1_lists<device>) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const Arguments args{stack->data() + (stack->size() - count), count};
  if constexpr (policy == Policy::Lower) {
    cast(args, at::autocast::get_autocast_dtype(device), device);
  } else if constexpr (policy == Policy::Fp32) {
    cast(args, at::kFloat, device);
  } else if constexpr (policy == Policy::Fp32SetDtype) {
    set_dtype(schema, args, device);
  } else if constexpr (policy == Policy::Fp32AppendDtype) {
    append_dtype(op, stack, args, device);
    return;
  } else if constexpr (policy == Policy::Promote) {
    cast(args, widest(args, device), device);
  } else if (at::autocast::is_eligible(args[0].toTensor(), device)) {
    cast(args.without_first(), args[0].toTensor().scalar_type(), device);
  }
  op.callBoxed(stack);
}

template <at::DeviceType device>
torch::CppFunction function(Policy policy) {
  using torch::CppFunction;
  switch (policy) {
    case Policy::Lower:
      return CppFunction::makeFromBoxedFunction<&kernel<device, Policy::Lower>>();
    case Policy::Fp32:
      return CppFunction::makeFromBoxedFunction<&kernel<device, Policy::Fp32>>();
    case Policy::Fp32SetDtype:
      return CppFunction::makeFromBoxedFunction<&kernel<device, Policy::Fp32SetDtype>>();
    case Policy::Fp32AppendDtype:
      return CppFunction::makeFromBoxedFunction<&kernel<device, Policy::Fp32AppendDtype>>();
    case Policy::Promote:
      return CppFunction::makeFromBoxedFunction<&kernel<device, Policy::Promote>>();
    case Policy::IntoFirst:
      return CppFunction::makeFromBoxedFunction<&kernel<device, Policy::IntoFirst>>();
  }
  TORCH_CHECK(false, "unknown autocast policy");
}

struct NoWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// What libtorch does with `binary_cross_entropy` under CUDA autocast: it refuses.
inline std::optional<c10::SafeKernelFunction>& refusal() {
  static std::optional<c10::SafeKernelFunction> refusal;
  return refusal;
}

inline void cuda_binary_cross_entropy(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (o1_lists<at::kCUDA>) {
    kernel<at::kCUDA, Policy::Fp32>(op, keys, stack);
  } else {
    refusal()->callBoxed(op, keys, stack);
  }
}

// Has `binary_cross_entropy` run in FP32 in regions on CUDA, as on the CPU: the one registration that replaces
// libtorch's. Its kernel stays in the dispatcher, and refuses outside regions as before.
inline void register_cuda_binary_cross_entropy(torch::Library& library) {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::binary_cross_entropy", ""});
  if (op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA)) {
    refusal() = op->getComputedKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
    // The dispatcher warns of a replacement.
    NoWarnings none;
    const c10::WarningUtils::WarningHandlerGuard guard(&none);
    library.impl("binary_cross_entropy", torch::CppFunction::makeFromBoxedFunction<&cuda_binary_cross_entropy>());
  }
}

inline c10::OperatorName operator_name(const std::string& name) {
  const auto dot = name.find('.');
  const auto overload = dot == std::string::npos ? std::string() : name.substr(dot + 1);
  return {"aten::" + name.substr(0, dot), overload};
}

// An operation that this libtorch does not have, or casts on the device itself, is left alone: a second registration
// would replace libtorch's and print a warning.
template <at::DeviceType device, size_t N>
void register_list(torch::Library& library, const Entry (&list)[N]) {
  for (const auto& entry : list) {
    const auto op = c10::Dispatcher::singleton().findSchema(operator_name(entry.name));
    if (op.has_value() && !op->hasKernelForDispatchKey(autocast_key<device>())) {
      library.impl(entry.name, function<device>(entry.policy));
    }
  }
}

} // namespace detail

// Registers the lists for a device the first time it is called.
template <at::DeviceType device>
void register_o1_lists() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto library = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", detail::autocast_key<device>(), __FILE__, __LINE__);
    if constexpr (device == at::kCPU) {
      detail::register_list<device>(*library, LISTS_OF_CUDA);
    }
    if constexpr (device == at::kCUDA) {
      detail::register_cuda_binary_cross_entropy(*library);
    }
    detail::register_list<device>(*library, MIXED_TYPES);
    // Kept for the life of the process: its destructor would take the kernels out again.
    static_cast<void>(library.release());
  });
}

} // namespace tch_amp
