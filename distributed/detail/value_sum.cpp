#include "distributed/detail/value_sum.h"
#include <algorithm>
#include <sstream>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "distributed/detail/collective_ops.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

ValueSum::ValueSum(std::shared_ptr<Communicator> communicator, at::Device device)
    : communicator_(std::move(communicator)), device_(device) {}

void ValueSum::agree(const NamedTensors& values) {
  std::string own;
  for (const auto& [name, value] : values) own += c10::str(static_cast<int>(value.scalar_type()), " ", name, "\n");
  std::vector<std::string> all = communicator_->all_gather(own);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& rank) { return !rank.empty(); });
  require<ConfigError>(first != all.end(),
                       "[Distributed] no rank has a micro-batch for the first step, expected at least one");
  const std::string plan = *first;
  for (std::string& rank : all) {
    if (rank.empty()) rank = plan;  // it has no micro-batch
  }
  if (const auto found = first_difference(all)) {
    throw ConfigError(c10::str("[Task] training_step logs other values on rank ", found->rank,
                               " than on the ranks before: '", found->there, "' instead of '", found->on_first,
                               "' (dtype number and name); log the same names and types everywhere"));
  }
  std::istringstream lines(plan);
  int dtype = 0;
  std::string name;
  while (lines >> dtype && std::getline(lines >> std::ws, name)) {
    plan_.push_back({name, static_cast<at::ScalarType>(dtype)});
  }
  values_ = at::zeros({static_cast<int64_t>(plan_.size())}, at::TensorOptions().dtype(at::kDouble).device(device_));
}

void ValueSum::start(const NamedTensors& values) {
  const at::NoGradGuard no_grad;
  if (plan_.empty()) agree(values);
  if (values.empty()) {
    values_.zero_();
  } else {
    bool same = values.size() == plan_.size();
    for (std::size_t i = 0; same && i < values.size(); ++i) same = values[i].first == plan_[i].name;
    require<ConfigError>(
        same,
        "[Task] training_step logs other names than in the first step, expected the same ones every time "
        "when several processes train; log a constant where there is nothing to say");
    std::vector<at::Tensor> parts;
    for (const auto& [name, value] : values) {
      require<ConfigError>(value.numel() == 1, "[Task] training_step logs '" + name +
                                                   "' with more than one element, expected one number; take its mean");
      parts.push_back(value.to(values_.scalar_type()).reshape({}));
    }
    values_.copy_(at::stack(parts));
  }
  start_sum_(values_, *communicator_);
}

NamedTensors ValueSum::finish() {
  const at::NoGradGuard no_grad;
  finish_(values_, *communicator_);
  NamedTensors sums;
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    // Memory of its own: the next step changes values_.
    sums.emplace_back(
        plan_[i].name,
        values_.select(0, static_cast<int64_t>(i)).to(plan_[i].dtype, /*non_blocking=*/false, /*copy=*/true));
  }
  return sums;
}

}  // namespace duet
