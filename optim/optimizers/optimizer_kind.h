#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../../base/batch.h"
#include "kernel_call.h"

namespace duet {

class OptimizerOptions;

// A tensor that an optimizer keeps for every parameter, under the name that PyTorch's state_dict gives it.
struct StateSlot {
  enum class Shape { kParameter, kScalar };  // like the parameter, or 0-dim float32

  std::string name;
  Shape shape = Shape::kParameter;
  double initial = 0;
  // Which parameters have it; null: all. The others hold an undefined tensor at its place in KernelCall::state.
  bool (*kept)(const at::Tensor& parameter) = nullptr;
};

// One optimizer: what it keeps, the numbers that may change during a run, and its step. One of your own goes into
// OptimizerOptions; groups, schedules, skipped steps, checkpoints, narrow dtypes and capture work as for the others.
struct OptimizerKind {
  std::string name;
  // In the order of KernelCall::state. Depends on the flags ("centered" adds "grad_avg", ...).
  std::function<std::vector<StateSlot>(const OptimizerOptions& options)> slots;
  // Start values; "lr" is among them.
  std::function<std::map<std::string, double>(const OptimizerOptions& options)> numbers;
  // The step. Reads nothing to the host, uses no host number but the flags, and changes only parameters and state, so
  // that it can be captured. The parameters of a call have one dtype and device and keep the same state; a step makes
  // as many calls as it takes.
  std::function<void(const KernelCall& call, const OptimizerOptions& options)> kernel;
  // Throws ConfigError for options or parameters that this optimizer cannot take; empty: takes all valid ones.
  std::function<void(const OptimizerOptions& options, const NamedTensors& parameters)> check{};
  // The kernel divides gradients by KernelCall::grad_scale and skips by found_inf itself.
  bool fused = false;
};

// One file each.
extern const OptimizerKind kSgd, kAdam, kAdamw, kAdagrad;  // over ATen's fused kernels
extern const OptimizerKind kRmsprop, kNadam, kRadam, kLion, kMuon;

// The kind called `name` ("RMSprop", ...), or null.
const OptimizerKind* find_optimizer_kind(const std::string& name);
// The one of the options' own, or the one of their type; null for LBFGS.
const OptimizerKind* find_optimizer_kind(const OptimizerOptions& options);

// The options that may change during a run: every single number, and betas as beta1 and beta2.
std::map<std::string, double> numbers_in(const OptimizerOptions& options);

// Runs a kernel that is not fused. Float16 and bfloat16 are stepped in float32 and rounded once, at the end.
void run_kernel(const OptimizerKind& kind, const KernelCall& call, const OptimizerOptions& options);

}  // namespace duet
