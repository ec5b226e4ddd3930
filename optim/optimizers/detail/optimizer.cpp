#include "optim/optimizers/detail/optimizer.h"
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/log.h"
#include "optim/optimizers/detail/grouped_optimizer.h"

namespace duet {

std::unique_ptr<Optimizer> Optimizer::create(const OptimizerOptions& options, const ParamGroups& groups,
                                             bool may_skip) {
  options.validate();
  if (const LBFGS* lbfgs = options.get_if<LBFGS>()) return make_lbfgs(*lbfgs, groups);
  return std::make_unique<GroupedOptimizer>(*find_optimizer_kind(options), options, groups, may_skip);
}

std::unique_ptr<Optimizer> Optimizer::create(const OptimizerOptions& options, const NamedTensors& parameters) {
  return create(options, ParamGroups{{"", parameters, {}}});
}

at::Tensor Optimizer::step_with(const std::function<at::Tensor()>& closure) {
  const at::Tensor loss = closure();
  step();
  return loss;
}

void Optimizer::check_number(std::size_t group, const std::string& name, double value) const {
  numbers_.tensor(group, name);  // throws for a name that is not there
  options_.check_number(name, value);
}

void Optimizer::set(std::size_t group, const std::string& name, double value) {
  check_number(group, name, value);
  numbers_.set(group, name, value);
}

void Optimizer::set_schedule(const std::string& name, Curve curve) {
  const int64_t now = applied();
  for (std::size_t group = 0; group < group_count(); ++group) {
    if (has(group, name)) check_number(group, name, curve(group, now));
  }
  numbers_.set_schedule(name, [this, name, curve = std::move(curve)](std::size_t group, int64_t at) {
    const double value = curve(group, at);
    check_number(group, name, value);
    return value;
  });
}

std::string Optimizer::number_key(const char* what, std::size_t group, const std::string& name) {
  return concat_text(what, ".", group, ".", name);
}

void Optimizer::save_numbers(StateDict& state) const {
  for_each_number([&](std::size_t group, const std::string& name, double configured) {
    state.set(number_key("param_groups", group, name), get(group, name));
    state.set(number_key("configured", group, name), configured);
    state.set(number_key("kept", group, name), numbers_.kept(group, name));
  });
}

void Optimizer::load_numbers(const StateDict& state) {
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (auto& [name, value] : configured_[group]) {
      const double saved = state.number(number_key("configured", group, name));
      if (saved != value) {
        const std::string where = group_count() == 1 ? "" : c10::str(" of group ", group);
        log_warning(c10::str(
            "[Optimizer] the state was trained with ", name, where, " = ", saved, ", this run is configured with ",
            value,
            "; that of the state is used. --hyper-parameters config, or BaseTrainer::load, can take this run's"));
      }
      value = saved;  // as if it had been made with it: what is saved next says what is used
      set(group, name, state.number(number_key("param_groups", group, name)));
    }
  }
  numbers_.end();  // these are the numbers as they were; only some were set against a curve
  for_each_number([&](std::size_t group, const std::string& name, double) {
    const std::string key = number_key("kept", group, name);
    if (state.has(key) && state.flag(key)) numbers_.keep(group, name);
  });
  numbers_.refill();
}

namespace {

// Strides of dimensions of size 1 say nothing.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) != 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

}  // namespace

void lay_out_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided) return;
  if (gradient.sizes() != parameter.sizes() || lie_alike(gradient, parameter)) return;
  at::Tensor copy = at::empty_like(parameter, gradient.options().requires_grad(false));
  parameter.mutable_grad() = copy.copy_(gradient);
}

}  // namespace duet
