#include <duet/optim/optimizer.h>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <duet/optim/fused_optimizer.h>

#include <cmath>

namespace duet {

namespace {

std::optional<at::Tensor> optional_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

// The type and the flags that change what its state means.
std::string kind_of(const OptimizerOptions& options) {
  std::string kind = options.type;
  if (options.type == "SGD" && options.momentum != 0) kind += " with momentum";
  if (options.type != "SGD" && options.amsgrad) kind += " with amsgrad";
  if (options.nesterov) kind += ", nesterov";
  if (options.maximize) kind += ", maximize";
  return kind;
}

// torch.optim.SGD(fused=True)
class Sgd : public FusedOptimizer {
 public:
  Sgd(const OptimizerOptions& options, const NamedTensors& parameters)
      : FusedOptimizer(kind_of(options), parameters,
                       {{"lr", options.lr}, {"weight_decay", options.weight_decay.value_or(0)},
                        {"momentum", options.momentum}, {"dampening", options.dampening}},
                       options.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{},
                       /*counts_steps=*/false),
        options_(options) {}

  void set(std::size_t group, const std::string& name, double value) override {
    if (name == "momentum" && options_.momentum == 0 && value != 0) {
      throw ConfigError(c10::str("[Optimizer] found momentum = ", value, " for an SGD that was made without momentum "
                                 "and has no buffers for it; give OptimizerOptions::momentum a small value from the start"));
    }
    FusedOptimizer::set(group, name, value);
  }

 private:
  void run_kernel(const Group& group, const Call& call, const at::Tensor& grad_scale) override {
    const std::vector<at::Tensor> none;
    const auto& buffers = call.state.empty() ? none : call.state[0];
    at::_fused_sgd_(call.parameters, call.gradients, buffers, group.numbers.at("weight_decay"),
                    group.numbers.at("momentum"), group.lr, group.numbers.at("dampening"), options_.nesterov,
                    options_.maximize, call.first && !buffers.empty(), optional_tensor(grad_scale));
  }

  OptimizerOptions options_;
};

// torch.optim.Adam(fused=True) and torch.optim.AdamW(fused=True)
class Adam : public FusedOptimizer {
 public:
  Adam(const OptimizerOptions& options, const NamedTensors& parameters)
      : FusedOptimizer(kind_of(options), parameters,
                       {{"lr", options.lr},
                        {"weight_decay", options.weight_decay.value_or(options.type == "AdamW" ? 0.01 : 0)},
                        {"beta1", options.betas[0]}, {"beta2", options.betas[1]}, {"eps", options.eps}},
                       options.amsgrad ? std::vector<std::string>{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
                                       : std::vector<std::string>{"exp_avg", "exp_avg_sq"},
                       /*counts_steps=*/true),
        options_(options) {}

 private:
  void run_kernel(const Group& group, const Call& call, const at::Tensor& grad_scale) override {
    const std::vector<at::Tensor> none;
    const auto& maxima = options_.amsgrad ? call.state[2] : none;
    const auto& n = group.numbers;
    const auto step = [&](auto kernel) {
      kernel(call.parameters, call.gradients, call.state[0], call.state[1], maxima, call.steps, group.lr, n.at("beta1"),
             n.at("beta2"), n.at("weight_decay"), n.at("eps"), options_.amsgrad, options_.maximize,
             optional_tensor(grad_scale));
    };
    if (options_.type == "AdamW") {
      step([](const auto&... args) { at::_fused_adamw_(args...); });
    } else {
      step([](const auto&... args) { at::_fused_adam_(args...); });
    }
  }

  OptimizerOptions options_;
};

void check_range(const char* field, double value, double low, double high, bool high_allowed, const char* range) {
  const bool inside = std::isfinite(value) && value >= low && (value < high || (high_allowed && value == high));
  if (!inside) {
    throw ConfigError(c10::str("[OptimizerOptions] ", field, " is ", value, ", expected a number ", range));
  }
}

}  // namespace

void OptimizerOptions::validate() const {
  if (type != "SGD" && type != "Adam" && type != "AdamW") {
    throw ConfigError("[OptimizerOptions] type is '" + type + "', expected SGD, Adam or AdamW");
  }
  constexpr double kInf = std::numeric_limits<double>::infinity();
  check_range("lr", lr, 0, kInf, false, ">= 0");
  check_range("weight_decay", weight_decay.value_or(0), 0, kInf, false, ">= 0");
  check_range("betas[0]", betas[0], 0, 1, false, "in [0, 1)");
  check_range("betas[1]", betas[1], 0, 1, false, "in [0, 1)");
  check_range("eps", eps, 0, kInf, false, ">= 0");
  check_range("momentum", momentum, 0, kInf, false, ">= 0");
  check_range("dampening", dampening, 0, 1, true, "in [0, 1]");
  require<ConfigError>(!nesterov || (momentum > 0 && dampening == 0),
                       "[OptimizerOptions] nesterov needs momentum > 0 and dampening = 0");
}

std::unique_ptr<Optimizer> Optimizer::create(const OptimizerOptions& options, const NamedTensors& parameters) {
  options.validate();
  if (options.type == "SGD") return std::make_unique<Sgd>(options, parameters);
  return std::make_unique<Adam>(options, parameters);
}

}  // namespace duet
