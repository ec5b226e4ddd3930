#include "core/detail/distributed_step.h"
#include <iterator>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/train_step.h"
#include "distributed/detail/broadcast.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

namespace {

// Before anything is built on the values.
const DistributedOptions& with_same_model(Task& task, const DistributedOptions& options) {
  NamedTensors all = task.named_parameters();
  for (auto& item : task.named_buffers()) all.push_back(std::move(item));
  make_same_model(all, *options.communicator);
  return options;
}

}  // namespace

DistributedStep::DistributedStep(Task& task, const NamedTensors& parameters, const ParamGroups& groups,
                                 at::Device device, const TrainStepOptions& options, const HyperParameters& numbers)
    : task_(task),
      broadcasts_buffers_(options.distributed.broadcast_buffers),
      communicator_(with_same_model(task, options.distributed).communicator),
      settings_(communicator_, options, groups, numbers),
      gradients_(parameters, communicator_, options.distributed),
      values_(communicator_, device),
      buffers_(communicator_) {}

uint64_t DistributedStep::fingerprint() const {
  const uint64_t model = hash_with(gradients_.layout(), broadcasts_buffers_ ? buffers_.layout() : 0);
  return hash_with(model, settings_.hash());
}

void DistributedStep::recheck() {
  settings_.recheck();
  gradients_.recheck();
  if (broadcasts_buffers_) buffers_.recheck();
}

namespace {

// The loss first. Empty on a rank without a micro-batch.
NamedTensors values_of(const StepResult& result) {
  NamedTensors values;
  if (!result.loss.defined()) return values;
  values.emplace_back("loss", result.loss);
  values.insert(values.end(), result.log.begin(), result.log.end());
  return values;
}

}  // namespace

void DistributedStep::before_last_backward(const StepResult& share) {
  values_.start(values_of(share));
  gradients_.arm();
}

void DistributedStep::after_backward(StepResult& output, bool has_batch) {
  if (!has_batch) values_.start({});
  gradients_.finish();
  NamedTensors sums = values_.finish();
  output.loss = sums.front().second;
  output.log.assign(std::make_move_iterator(sums.begin() + 1), std::make_move_iterator(sums.end()));
}

void DistributedStep::after_step() {
  if (broadcasts_buffers_) buffers_.run(task_.named_buffers());
}

}  // namespace duet
