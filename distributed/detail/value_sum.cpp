#include "distributed/detail/value_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "distributed/detail/collective_ops.h"
#include "distributed/detail/text_difference.h"
#include "base/error.h"

#include <sstream>

namespace duet {

ValueSum::ValueSum(std::shared_ptr<Communicator> communicator, at::Device device)
    : communicator_(std::move(communicator)), device_(device) {}

void ValueSum::agree(const StepResult& output) {
  std::string own;
  const auto add = [&own](const std::string& name, const at::Tensor& value) {
    own += c10::str(static_cast<int>(value.scalar_type()), " ", name, "\n");
  };
  if (output.loss.defined()) {
    add("loss", output.loss);
    for (const auto& [name, value] : output.log) add(name, value);
  }
  const std::vector<std::string> all = communicator_->all_gather(own);
  std::string plan;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;  // it has no micro-batch
    if (plan.empty()) plan = all[rank];
    if (all[rank] == plan) continue;
    const auto [here, there] = first_different_lines(all[rank], plan);
    throw ConfigError(c10::str("[Task] training_step logs other values on rank ", rank, " than on the ranks before: '",
                               here, "' instead of '", there,
                               "' (dtype number and name); log the same names and types everywhere"));
  }
  require<ConfigError>(!plan.empty(),
                       "[Distributed] no rank has a micro-batch for the first step, expected at least one");
  std::istringstream lines(plan);
  int dtype = 0;
  std::string name;
  while (lines >> dtype && std::getline(lines >> std::ws, name))
    plan_.push_back({name, static_cast<at::ScalarType>(dtype)});
  values_ = at::zeros({static_cast<int64_t>(plan_.size())}, at::TensorOptions().dtype(at::kDouble).device(device_));
}

void ValueSum::start(const StepResult& output) {
  const at::NoGradGuard no_grad;
  if (plan_.empty()) agree(output);
  if (!output.loss.defined()) {
    values_.zero_();
  } else {
    bool same = output.log.size() + 1 == plan_.size();
    for (std::size_t i = 0; same && i < output.log.size(); ++i) same = output.log[i].first == plan_[i + 1].name;
    require<ConfigError>(
        same,
        "[Task] training_step logs other names than in the first step, expected the same ones every time "
        "when several processes train; log a constant where there is nothing to say");
    std::vector<at::Tensor> values{output.loss.to(values_.scalar_type()).reshape({})};
    for (const auto& [name, value] : output.log) {
      require<ConfigError>(value.numel() == 1, "[Task] training_step logs '" + name +
                                                   "' with more than one element, expected one number; take its mean");
      values.push_back(value.to(values_.scalar_type()).reshape({}));
    }
    values_.copy_(at::stack(values));
  }
  start_sum_(values_, *communicator_);
}

void ValueSum::finish(StepResult& output) {
  const at::NoGradGuard no_grad;
  finish_(values_, *communicator_);
  output.log.resize(plan_.size() - 1);
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    // Memory of its own: the next step changes values_.
    const at::Tensor value =
        values_.select(0, static_cast<int64_t>(i)).to(plan_[i].dtype, /*non_blocking=*/false, /*copy=*/true);
    if (i == 0) {
      output.loss = value;
    } else {
      output.log[i - 1] = {plan_[i].name, value};
    }
  }
}

}  // namespace duet
