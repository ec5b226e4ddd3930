#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../../base/options.h"

namespace duet {

struct OptimizerKind;

// The optimizers, each with the names and defaults of torch.optim.

struct SGD {
  double lr = 1e-3;
  double weight_decay = 0;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool maximize = false;
  static const OptionFields& fields();
};

struct Adam {
  double lr = 1e-3;
  double weight_decay = 0;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool amsgrad = false;
  bool maximize = false;
  static const OptionFields& fields();
};

struct AdamW {
  double lr = 1e-3;
  double weight_decay = 0.01;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool amsgrad = false;
  bool maximize = false;
  static const OptionFields& fields();
};

struct Adagrad {
  double lr = 1e-2;
  double weight_decay = 0;
  double eps = 1e-10;
  bool maximize = false;
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  static const OptionFields& fields();
};

struct RMSprop {
  double lr = 1e-2;
  double weight_decay = 0;
  double eps = 1e-8;
  double momentum = 0;
  bool maximize = false;
  double alpha = 0.99;
  bool centered = false;
  static const OptionFields& fields();
};

struct NAdam {
  double lr = 2e-3;
  double weight_decay = 0;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool maximize = false;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;
  static const OptionFields& fields();
};

struct RAdam {
  double lr = 1e-3;
  double weight_decay = 0;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool maximize = false;
  bool decoupled_weight_decay = false;
  static const OptionFields& fields();
};

struct Lion {
  double lr = 1e-4;
  double weight_decay = 0;
  std::array<double, 2> betas = {0.9, 0.99};
  bool maximize = false;
  static const OptionFields& fields();
};

struct Adadelta {
  double lr = 1;
  double weight_decay = 0;
  double eps = 1e-6;
  bool maximize = false;
  double rho = 0.9;
  static const OptionFields& fields();
};

struct Adamax {
  double lr = 2e-3;
  double weight_decay = 0;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool maximize = false;
  static const OptionFields& fields();
};

struct ASGD {
  double lr = 1e-2;
  double weight_decay = 0;
  bool maximize = false;
  double lambd = 1e-4;
  double alpha = 0.75;
  double t0 = 1e6;
  static const OptionFields& fields();
};

// lr is each element's first step size; a later one has no effect.
struct Rprop {
  double lr = 1e-2;
  bool maximize = false;
  std::array<double, 2> etas = {0.5, 1.2};
  std::array<double, 2> step_sizes = {1e-6, 50};
  static const OptionFields& fields();
};

// torch.optim's eps = (eps1, eps2).
struct Adafactor {
  double lr = 1e-2;
  double weight_decay = 0;
  bool maximize = false;
  double beta2_decay = -0.8;
  std::optional<double> eps1{};
  double eps2 = 1e-3;
  double d = 1;
  static const OptionFields& fields();
};

// For an Embedding with sparse; parameters with dense gradients are stepped by Adam. Sparse gradients take a trainer
// without clipping, loss scaling and checks for inf and NaN; graph mode runs their steps op by op.
struct SparseAdam {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool maximize = false;
  static const OptionFields& fields();
};

// Muon for matrices, AdamW with these betas for all other parameters.
struct Muon {
  double lr = 1e-3;
  double weight_decay = 0.1;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-7;
  double momentum = 0.95;
  bool nesterov = true;
  bool maximize = false;
  int64_t ns_steps = 5;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  std::string adjust_lr_fn = "original";
  static const OptionFields& fields();
};

// EagerTrainer only: a step evaluates the loss as often as its line search needs.
struct LBFGS {
  double lr = 1;
  int64_t max_iter = 20;
  std::optional<int64_t> max_eval{};
  double tolerance_grad = 1e-7;
  double tolerance_change = 1e-9;
  int64_t history_size = 100;
  std::string line_search_fn = "none";
  static const OptionFields& fields();
};

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);
template <class T>
concept BuiltInOptimizer = OneOf<T, SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Lion, Muon, Adadelta, Adafactor,
                                 Adamax, ASGD, Rprop, SparseAdam, LBFGS>;

// Any of them, or an optimizer of your own.
class OptimizerOptions : public AnyOptions {
 public:
  OptimizerOptions() : OptimizerOptions(AdamW{}) {}
  template <BuiltInOptimizer T>
  OptimizerOptions(T options) : AnyOptions(std::move(options)) {}
  OptimizerOptions(std::shared_ptr<const OptimizerKind> own);
  // With its defaults. Throws ConfigError for a type that is none of those above.
  static OptimizerOptions of_type(const std::string& type);
  static const std::vector<std::string>& built_in_types();

  const std::string& type() const;
  const OptimizerKind* own_kind() const { return own_.get(); }  // null: one of the above
  // Of a type that is known to be this one.
  template <BuiltInOptimizer T>
  const T& as() const {
    return *get_if<T>();
  }
  // Whether there is such an option and it is on.
  bool flag(const std::string& name) const;

  // Throws ConfigError naming the field and its range.
  void validate() const;
  // Throws ConfigError if `value` is outside the range of the number `name` ("lr", "beta1", ...), which may change in a
  // run.
  void check_number(const std::string& name, double value) const;

 private:
  std::shared_ptr<const OptimizerKind> own_;
};

// Scales all gradients so that their norm is at most max_norm.
struct ClipNorm {
  double max_norm = 1.0;
  double norm_type = 2.0;
  static const OptionFields& fields();
};

// Clamps every element to [-clip_value, clip_value].
struct ClipValue {
  double clip_value = 0;  // must be given
  static const OptionFields& fields();
};

// Adaptive gradient clipping of NFNets (Brock et al. 2021, eq. 3): scales the gradient of each unit so that its 2-norm
// is at most clip_factor times that of the unit's weights. A unit is what lies at one index of a parameter's first
// dimension; a parameter of at most one dimension is one unit.
struct ClipAdaptive {
  double clip_factor = 0.01;
  double eps = 1e-3;                   // least norm that a unit's weights count with, so that zeros can begin to move
  std::vector<std::string> exclude{};  // parameters and modules that are not clipped: NFNets' last layer
  static const OptionFields& fields();
};

// Changes the gradients by a function of one's own, in place, by ops alone: unscaled ones, before the optimizer's step.
struct ClipWith {
  std::function<void(const std::vector<at::Tensor>& gradients)> function;
  static const OptionFields& fields();
};

using ClipGrad = std::variant<ClipNorm, ClipValue, ClipAdaptive, ClipWith>;

// The loss scale of float16 training. Names and defaults of torch.amp.GradScaler.
struct LossScaleOptions {
  bool dynamic = true;  // false: init_scale for the whole run
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;

  static const OptionFields& fields();
};

}  // namespace duet
