#include "graph/record/thread_settings.h"
#include <cfenv>
#include <limits>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include "base/detail/torch_versions.h"

namespace duet {

namespace {

at::Context& context() { return at::globalContext(); }

// Gradients, forward gradients, inference, its threads, replay of views, layout of gradients.
int64_t modes_of_autograd() {
  const c10::AutogradState& state = c10::AutogradState::get_tls_state();
  return int64_t{state.get_grad_mode()} + 2 * int64_t{state.get_fw_grad_mode()} +
         4 * int64_t{state.get_inference_mode()} + 8 * int64_t{state.get_multithreading_enabled()} +
         16 * int64_t{state.get_view_replay_enabled()} + 32 * enforces_layout_of_gradients(state);
}

// How many there are, and whether they are forbidden.
int64_t hooks_on_saved_tensors() {
  const at::impl::SavedTensorDefaultHooksTLS& state = at::SavedTensorDefaultHooks::get_tls_state();
  return 2 * static_cast<int64_t>(state.stack.size()) + int64_t{state.disabled_error_message.has_value()};
}

int64_t autocast(c10::DeviceType type) {
  return at::autocast::is_autocast_enabled(type) ? 1 + static_cast<int64_t>(at::autocast::get_autocast_dtype(type)) : 0;
}

struct OpSetting {
  const char* name;
  int64_t (*now)();
  void (*set)(int64_t);
};

using AnomalyMode = torch::autograd::AnomalyMode;
using Backend = at::Float32Backend;
using Float32Op = at::Float32Op;

int64_t precision(Backend backend, Float32Op op) {
  return static_cast<int64_t>(context().float32Precision(backend, op));
}

template <Float32Op op>
constexpr OpSetting precision_of_onednn(const char* name) {
  return {name, [] { return precision(Backend::MKLDNN, op); },
          [](int64_t value) {
            context().setFloat32Precision(Backend::MKLDNN, op, at::Float32Precision::NONE);  // that of all backends
            if (precision(Backend::MKLDNN, op) == value) return;
            context().setFloat32Precision(Backend::MKLDNN, op, static_cast<at::Float32Precision>(value));
          }};
}

template <c10::DeviceType type>
constexpr OpSetting kAutocast = {"autocast", [] { return autocast(type); },
                                 [](int64_t value) {
                                   if (autocast(type) == value) return;
                                   at::autocast::set_autocast_enabled(type, value > 0);
                                   if (value == 0) return;
                                   at::autocast::set_autocast_dtype(type, static_cast<c10::ScalarType>(value - 1));
                                 }};

// A replay sets them for each op.
constexpr std::array<OpSetting, std::tuple_size_v<ThreadSettings>> kOfEachOp = {
    {{"gradients", [] { return int64_t{at::GradMode::is_enabled()}; },
      [](int64_t value) { at::GradMode::set_enabled(value != 0); }},
     kAutocast<c10::kCPU>,
     kAutocast<c10::kCUDA>}};

// Part of the signature, and the same at all ops of a step: a replay runs its kernels under what is set then.
constexpr std::array<OpSetting, std::tuple_size_v<OpSettings>> kOfOps = {{
    {"default dtype", [] { return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()); },
     [](int64_t v) { c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(v))); }},
    {"deterministic algorithms", [] { return int64_t{context().deterministicAlgorithms()}; },
     [](int64_t v) { context().setDeterministicAlgorithms(v != 0, context().deterministicAlgorithmsWarnOnly()); }},
    {"filling of uninitialized memory", [] { return int64_t{context().deterministicFillUninitializedMemory()}; },
     [](int64_t v) { context().setDeterministicFillUninitializedMemory(v != 0); }},
    {"oneDNN", [] { return int64_t{context().userEnabledMkldnn()}; },
     [](int64_t v) { context().setUserEnabledMkldnn(v != 0); }},
    {"deterministic oneDNN", [] { return int64_t{context().deterministicMkldnn()}; },
     [](int64_t v) { context().setDeterministicMkldnn(v != 0); }},
    {"float16 reduction", [] { return int64_t{context().allowFP16ReductionCPU()}; },
     [](int64_t v) { context().setAllowFP16ReductionCPU(v != 0); }},
    {"number of threads", [] { return int64_t{at::get_num_threads()}; },
     [](int64_t v) { at::set_num_threads(static_cast<int>(v)); }},
    {"flushing of denormal numbers", [] { return int64_t{flushes_denormals()}; },
     [](int64_t v) { at::Context::setFlushDenormal(v != 0); }},
    {"rounding mode", [] { return int64_t{std::fegetround()}; },
     [](int64_t v) { std::fesetround(static_cast<int>(v)); }},
    precision_of_onednn<Float32Op::CONV>("oneDNN's float32 precision of convolutions"),
    precision_of_onednn<Float32Op::RNN>("oneDNN's float32 precision of RNNs"),
    precision_of_onednn<Float32Op::MATMUL>("oneDNN's float32 precision of products"),
}};
constexpr std::size_t kOfProducts = 3;  // the last ones, which cost as much to read as all others

// Part of the signature alone: they act above the recorded ops, or when a device captures them. Dispatch keys tell of
// dispatch modes, inference mode, functorch's levels and functionalization.
void append_settings_around_steps(std::vector<int64_t>& key) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  key.push_back(static_cast<int64_t>(keys.included_.raw_repr()));
  key.push_back(static_cast<int64_t>(keys.excluded_.raw_repr()));
  using FunctionModes = at::impl::PythonTorchFunctionTLS;
  for (const int64_t setting :
       {modes_of_autograd(), int64_t{AnomalyMode::is_enabled()}, int64_t{AnomalyMode::should_check_nan()},
        hooks_on_saved_tensors(), int64_t{hooks_on_new_nodes()},
        static_cast<int64_t>(FunctionModes::get_disabled_state()), int64_t{FunctionModes::stack_len()},
        autocast(c10::kCPU), int64_t{at::autocast::is_autocast_cache_enabled()},
        int64_t{context().deterministicAlgorithmsWarnOnly()}, int64_t{kernels_compiled_ahead(context())},
        int64_t{context().userEnabledFlashSDP()}, int64_t{context().userEnabledMathSDP()},
        int64_t{context().allowFP16BF16ReductionMathSDP()}}) {
    key.push_back(setting);
  }
}

// Likewise, where a GPU runs the steps.
void append_settings_of_gpus(std::vector<int64_t>& key) {
  for (const int64_t setting :
       {autocast(c10::kCUDA), int64_t{context().userEnabledCuDNN()}, int64_t{newer_gpu_kernels(context())},
        int64_t{context().benchmarkCuDNN()}, int64_t{context().deterministicCuDNN()},
        int64_t{context().userEnabledMemEfficientSDP()}, int64_t{context().userEnabledCuDNNSDP()},
        int64_t{context().allowFP16AccumulationCuBLAS()}, static_cast<int64_t>(context().allowFP16ReductionCuBLAS()),
        static_cast<int64_t>(context().allowBF16ReductionCuBLAS()), precision(Backend::CUDA, Float32Op::CONV),
        precision(Backend::CUDA, Float32Op::RNN), precision(Backend::CUDA, Float32Op::MATMUL)}) {
    key.push_back(setting);
  }
}

}  // namespace

void append_settings(std::vector<int64_t>& key, bool on_gpu) {
  for (const OpSetting& setting : kOfOps) key.push_back(setting.now());
  append_settings_around_steps(key);
  if (on_gpu) append_settings_of_gpus(key);
}

OpSettings op_settings() {
  OpSettings settings{};
  for (std::size_t i = 0; i < settings.size(); ++i) settings[i] = kOfOps[i].now();
  return settings;
}

std::string changed_setting(const OpSettings& before, bool of_products) {
  for (std::size_t i = 0; i < before.size() - (of_products ? 0 : kOfProducts); ++i) {
    if (before[i] != kOfOps[i].now()) return kOfOps[i].name;
  }
  return {};
}

OpSettingsGuard::OpSettingsGuard(const std::optional<OpSettings>& settings)
    : before_(op_settings()), settings_(settings.value_or(before_)) {
  for (std::size_t i = 0; i < settings_.size(); ++i) {
    if (settings_[i] != before_[i]) kOfOps[i].set(settings_[i]);
  }
}

OpSettingsGuard::~OpSettingsGuard() {
  for (std::size_t i = 0; i < settings_.size(); ++i) {
    if (settings_[i] != before_[i]) kOfOps[i].set(before_[i]);
  }
}

// By a difference: a denormal product or quotient costs a hundred cycles more.
bool flushes_denormals() {
  const volatile float smallest = std::numeric_limits<float>::min();
  const volatile float more = 1.5F * smallest;
  return more - smallest == 0;
}

ThreadSettings thread_settings() {
  ThreadSettings settings{};
  for (std::size_t i = 0; i < settings.size(); ++i) settings[i] = kOfEachOp[i].now();
  return settings;
}

void set_thread_settings(const ThreadSettings& settings) {
  for (std::size_t i = 0; i < settings.size(); ++i) kOfEachOp[i].set(settings[i]);
}

std::string changed_setting(const ThreadSettings& recorded, const std::optional<OpSettings>& of_step,
                            bool of_products) {
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    if (recorded[i] != kOfEachOp[i].now()) return kOfEachOp[i].name;
  }
  return of_step ? changed_setting(*of_step, of_products) : std::string();
}

ThreadSettingsGuard::ThreadSettingsGuard() : caches_(at::autocast::is_autocast_cache_enabled()) {
  for (std::size_t i = 0; i < dtypes_.size(); ++i) dtypes_[i] = at::autocast::get_autocast_dtype(kTypes[i]);
  at::autocast::set_autocast_cache_enabled(false);
}

ThreadSettingsGuard::~ThreadSettingsGuard() {
  set_thread_settings(before_);
  for (std::size_t i = 0; i < dtypes_.size(); ++i) at::autocast::set_autocast_dtype(kTypes[i], dtypes_[i]);
  at::autocast::set_autocast_cache_enabled(caches_);
}

}  // namespace duet
