#include "core/detail/trained_parameters.h"
#include <algorithm>
#include <set>
#include <utility>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include "base/detail/autograd_graph.h"
#include "base/detail/name_pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "core/task.h"

namespace duet {

void freeze(Task& task, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  const NamedTensors parameters = task.named_parameters();
  const std::vector<ModuleInfo> modules = task.modules();
  std::vector<std::string> names = keys_in(parameters), held;
  for (const ModuleInfo& module : modules) names.push_back(module.path);
  for (const std::string& pattern : patterns) {
    require<ConfigError>(!pattern.empty(), "[freeze] found an empty pattern, expected a name of a module or parameter");
    const auto found = [&](const std::string& name) { return fits_pattern(pattern, name); };
    if (std::none_of(names.begin(), names.end(), found)) {
      throw ConfigError("[freeze] found no module or parameter called '" + pattern + "'; the parameters are " +
                        join(keys_in(parameters)) + did_you_mean(pattern, names));
    }
    for (const auto& [name, tensor] : parameters) {
      if (found(name)) at::Tensor(tensor).requires_grad_(false);
    }
    for (const ModuleInfo& module : modules) {
      if (fits_whole(pattern, module.path)) held.push_back(module.path);
    }
  }
  const auto is_trained = [](const auto& parameter) { return parameter.second.requires_grad(); };
  require<ConfigError>(std::any_of(parameters.begin(), parameters.end(), is_trained),
                       "[freeze] leaves no parameter to train, expected one; freeze less");
  task.hold_in_evaluation(held);
  task.train(true);
}

void check_names(const Task& task) {
  std::set<std::string> names;
  for (const auto& tensor : named_tensors(task)) {
    require<ConfigError>(names.insert(tensor.first).second,
                         "[TrainStep] found two tensors called '" + tensor.first +
                             "' among parameters and buffers, of which a checkpoint would keep one; rename one");
  }
}

void leave_out_untrained(const ParamGroups& groups, bool allowed, NamedTensors& parameters) {
  std::set<const void*> trainable, held;
  for (const auto& parameter : parameters) trainable.insert(parameter.second.unsafeGetTensorImpl());
  for (const ParamGroup& group : groups) {
    for (const auto& [name, value] : group.parameters) {
      held.insert(value.unsafeGetTensorImpl());
      if (trainable.count(value.unsafeGetTensorImpl()) > 0) continue;
      throw ConfigError("[TrainStep] group '" + group.name + "' holds '" + name +
                        "', which is no trainable parameter of the task; let param_groups put only these into groups");
    }
  }
  const auto is_left = [&held](const auto& item) { return held.count(item.second.unsafeGetTensorImpl()) == 0; };
  for (const auto& parameter : parameters) {
    if (allowed || !is_left(parameter)) continue;
    throw ConfigError("[TrainStep] parameter '" + parameter.first +
                      "' is in no group and would never be trained; let param_groups put it into one, freeze it with "
                      "requires_grad_(false), or set allow_untrained where another trainer trains it");
  }
  std::erase_if(parameters, is_left);
}

namespace {

// Those that a backward pass from `loss` writes gradients to.
std::vector<at::Tensor> leaves_of(const at::Tensor& loss) {
  std::vector<at::Tensor> leaves;
  for (torch::autograd::Node* node : nodes_of(loss)) {
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) leaves.push_back(leaf->variable);
  }
  return leaves;
}

}  // namespace

OutsideParameters::OutsideParameters(const NamedTensors& own, const NamedTensors& others) {
  for (const auto& parameter : own) own_.insert(parameter.second.unsafeGetTensorImpl());
  for (const auto& parameter : others) {
    if (!own_.contains(parameter.second.unsafeGetTensorImpl())) others_.push_back(parameter.second);
  }
}

// All of it runs, not the part that leads to the trained ones: a node that runs a backward pass of its own (reentrant
// checkpointing) reaches parameters to which no edge of this graph leads.
void OutsideParameters::backward_past(const at::Tensor& loss) const {
  std::vector<at::Tensor> outside = leaves_of(loss);
  std::erase_if(outside, [this](const at::Tensor& leaf) { return own_.contains(leaf.unsafeGetTensorImpl()); });
  outside.insert(outside.end(), others_.begin(), others_.end());
  std::vector<at::Tensor> before;
  for (const at::Tensor& leaf : outside) before.push_back(std::exchange(leaf.mutable_grad(), at::Tensor()));
  const auto put_back = c10::make_scope_exit([&] {
    for (std::size_t i = outside.size(); i-- > 0;) outside[i].mutable_grad() = before[i];
  });
  loss.backward();
}

}  // namespace duet
