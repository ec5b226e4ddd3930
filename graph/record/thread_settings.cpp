#include "graph/record/thread_settings.h"
#include <algorithm>
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

struct Setting {
  const char* name;
  int64_t (*now)();
};

using Op = c10::OperatorHandle;

struct OpSetting : Setting {
  void (*set)(int64_t);
  bool (*asked_by)(const Op& op) = [](const Op&) { return true; };  // false where no kernel of LibTorch's asks
};

bool named(const Op& op, std::initializer_list<const char*> parts) {
  const std::string& name = op.schema().name();
  return name.rfind("aten::", 0) != 0 ||
         std::ranges::any_of(parts, [&](const char* part) { return name.find(part) != std::string::npos; });
}
bool is_convolution(const Op& op) { return named(op, {"conv"}); }
bool is_rnn(const Op& op) { return named(op, {"rnn", "lstm", "gru"}); }
bool may_multiply(const Op& op) { return !op.hasTag(at::Tag::pointwise) && !op.hasTag(at::Tag::reduction); }

using AnomalyMode = torch::autograd::AnomalyMode;
using Backend = at::Float32Backend;
using Float32Op = at::Float32Op;

int64_t precision(Backend backend, Float32Op op) {
  return static_cast<int64_t>(context().float32Precision(backend, op));
}

// It costs as much to read as all others: not for ops that do not ask.
template <Float32Op op>
constexpr OpSetting precision_of_onednn(const char* name, bool (*asked_by)(const Op&)) {
  return {{name, [] { return precision(Backend::MKLDNN, op); }},
          [](int64_t value) {
            context().setFloat32Precision(Backend::MKLDNN, op, at::Float32Precision::NONE);  // that of all backends
            if (precision(Backend::MKLDNN, op) == value) return;
            context().setFloat32Precision(Backend::MKLDNN, op, static_cast<at::Float32Precision>(value));
          },
          asked_by};
}

// Part of the signature, and the same at all ops of a step: a replay runs its kernels under what is set then.
constexpr std::array<OpSetting, std::tuple_size_v<OpSettings>> kOfOps = {{
    {{"default dtype", [] { return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()); }},
     [](int64_t v) { c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(v))); }},
    {{"deterministic algorithms", [] { return int64_t{context().deterministicAlgorithms()}; }},
     [](int64_t v) { context().setDeterministicAlgorithms(v != 0, context().deterministicAlgorithmsWarnOnly()); }},
    {{"filling of uninitialized memory", [] { return int64_t{context().deterministicFillUninitializedMemory()}; }},
     [](int64_t v) { context().setDeterministicFillUninitializedMemory(v != 0); }},
    {{"oneDNN", [] { return int64_t{context().userEnabledMkldnn()}; }},
     [](int64_t v) { context().setUserEnabledMkldnn(v != 0); }},
    {{"deterministic oneDNN", [] { return int64_t{context().deterministicMkldnn()}; }},
     [](int64_t v) { context().setDeterministicMkldnn(v != 0); }},
    precision_of_onednn<Float32Op::CONV>("oneDNN's float32 precision of convolutions", is_convolution),
    precision_of_onednn<Float32Op::RNN>("oneDNN's float32 precision of RNNs", is_rnn),
    precision_of_onednn<Float32Op::MATMUL>("oneDNN's float32 precision of products", may_multiply),
    {{"float16 reduction", [] { return int64_t{context().allowFP16ReductionCPU()}; }},
     [](int64_t v) { context().setAllowFP16ReductionCPU(v != 0); }},
    {{"number of threads", [] { return int64_t{at::get_num_threads()}; }},
     [](int64_t v) { at::set_num_threads(static_cast<int>(v)); }},
    {{"flushing of denormal numbers", [] { return int64_t{flushes_denormals()}; }},
     [](int64_t v) { at::Context::setFlushDenormal(v != 0); }},
    {{"rounding mode", [] { return int64_t{std::fegetround()}; }},
     [](int64_t v) { std::fesetround(static_cast<int>(v)); }},
}};

// Part of the signature alone: they act above the recorded ops, or when a device captures them. Dispatch keys tell of
// dispatch modes, inference mode, functorch's levels and functionalization.
constexpr std::array kAroundSteps = {
    Setting{"dispatch keys",
            [] { return static_cast<int64_t>(c10::impl::tls_local_dispatch_key_set().included_.raw_repr()); }},
    Setting{"left out dispatch keys",
            [] { return static_cast<int64_t>(c10::impl::tls_local_dispatch_key_set().excluded_.raw_repr()); }},
    Setting{"modes of autograd", modes_of_autograd},
    Setting{"anomaly mode",
            [] { return int64_t{AnomalyMode::is_enabled()} + 2 * int64_t{AnomalyMode::should_check_nan()}; }},
    Setting{"hooks on saved tensors", hooks_on_saved_tensors},
    Setting{"hooks on new nodes", [] { return hooks_on_new_nodes(); }},
    Setting{"__torch_function__", [] { return int64_t{at::impl::PythonTorchFunctionTLS::get_disabled_state()}; }},
    Setting{"function modes", [] { return at::impl::PythonTorchFunctionTLS::stack_len(); }},
    Setting{"autocast on the CPU", [] { return autocast(c10::kCPU); }},
    Setting{"autocast's cache", [] { return int64_t{at::autocast::is_autocast_cache_enabled()}; }},
    Setting{"warnings of nondeterminism", [] { return int64_t{context().deterministicAlgorithmsWarnOnly()}; }},
    Setting{"kernels compiled ahead of time", [] { return kernels_compiled_ahead(context()); }},
    Setting{"flash attention", [] { return int64_t{context().userEnabledFlashSDP()}; }},
    Setting{"attention by products", [] { return int64_t{context().userEnabledMathSDP()}; }},
    Setting{"reduced precision in attention", [] { return int64_t{context().allowFP16BF16ReductionMathSDP()}; }},
};

// Likewise, where a GPU runs the steps.
constexpr std::array kOfGpus = {
    Setting{"autocast on CUDA", [] { return autocast(c10::kCUDA); }},
    Setting{"cuDNN", [] { return int64_t{context().userEnabledCuDNN()}; }},
    Setting{"newer kernels", [] { return newer_gpu_kernels(context()); }},
    Setting{"cuDNN's benchmark", [] { return int64_t{context().benchmarkCuDNN()}; }},
    Setting{"deterministic cuDNN", [] { return int64_t{context().deterministicCuDNN()}; }},
    Setting{"memory-efficient attention", [] { return int64_t{context().userEnabledMemEfficientSDP()}; }},
    Setting{"cuDNN's attention", [] { return int64_t{context().userEnabledCuDNNSDP()}; }},
    Setting{"float16 accumulation", [] { return int64_t{context().allowFP16AccumulationCuBLAS()}; }},
    Setting{"cuBLAS's float16 reduction", [] { return static_cast<int64_t>(context().allowFP16ReductionCuBLAS()); }},
    Setting{"cuBLAS's bfloat16 reduction", [] { return static_cast<int64_t>(context().allowBF16ReductionCuBLAS()); }},
    Setting{"CUDA's float32 precision of convolutions", [] { return precision(Backend::CUDA, Float32Op::CONV); }},
    Setting{"CUDA's float32 precision of RNNs", [] { return precision(Backend::CUDA, Float32Op::RNN); }},
    Setting{"CUDA's float32 precision of products", [] { return precision(Backend::CUDA, Float32Op::MATMUL); }},
};

}  // namespace

void append_settings(std::vector<int64_t>& key, bool on_gpu) {
  for (const Setting& setting : kOfOps) key.push_back(setting.now());
  for (const Setting& setting : kAroundSteps) key.push_back(setting.now());
  if (!on_gpu) return;
  for (const Setting& setting : kOfGpus) key.push_back(setting.now());
}

OpSettings op_settings() {
  OpSettings settings{};
  for (std::size_t i = 0; i < settings.size(); ++i) settings[i] = kOfOps[i].now();
  return settings;
}

std::string changed_setting(const OpSettings& before, AskedSettings asked) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (asked[i] && before[i] != kOfOps[i].now()) return kOfOps[i].name;
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

ThreadSettings ThreadSettings::now() {
  ThreadSettings settings{at::GradMode::is_enabled(), {}};
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (at::autocast::is_autocast_enabled(kTypes[i]))
      settings.autocast[i] = at::autocast::get_autocast_dtype(kTypes[i]);
  }
  return settings;
}

void ThreadSettings::apply() const {
  at::GradMode::set_enabled(grad_mode);
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (at::autocast::is_autocast_enabled(kTypes[i]) != autocast[i].has_value()) {
      at::autocast::set_autocast_enabled(kTypes[i], autocast[i].has_value());
    }
    if (autocast[i]) at::autocast::set_autocast_dtype(kTypes[i], *autocast[i]);
  }
}

std::string changed_setting(const ThreadSettings& recorded, const std::optional<OpSettings>& of_step,
                            AskedSettings asked) {
  const ThreadSettings now = ThreadSettings::now();
  if (recorded.grad_mode != now.grad_mode) return now.grad_mode ? "gradients are on" : "gradients are off";
  if (!(recorded == now)) return "autocast is another";
  if (!of_step) return {};
  const std::string changed = changed_setting(*of_step, asked);
  return changed.empty() ? changed : "the setting '" + changed + "' is another";
}

AskedSettings settings_asked_by(const c10::OperatorHandle& op) {
  const auto is_view = [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  };
  AskedSettings asked;
  if (std::ranges::any_of(op.schema().returns(), is_view)) return asked;
  for (std::size_t i = 0; i < asked.size(); ++i) asked[i] = kOfOps[i].asked_by(op);
  return asked;
}

ThreadSettingsGuard::ThreadSettingsGuard()
    : before_(ThreadSettings::now()), caches_(at::autocast::is_autocast_cache_enabled()) {
  for (std::size_t i = 0; i < dtypes_.size(); ++i) {
    dtypes_[i] = at::autocast::get_autocast_dtype(ThreadSettings::kTypes[i]);
  }
  at::autocast::set_autocast_cache_enabled(false);
}

ThreadSettingsGuard::~ThreadSettingsGuard() {
  before_.apply();
  for (std::size_t i = 0; i < dtypes_.size(); ++i) {
    at::autocast::set_autocast_dtype(ThreadSettings::kTypes[i], dtypes_[i]);
  }
  at::autocast::set_autocast_cache_enabled(caches_);
}

}  // namespace duet
