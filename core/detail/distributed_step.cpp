#include "core/detail/distributed_step.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "distributed/detail/layout_hash.h"
#include "distributed/detail/same_model.h"
#include "core/train_step.h"

namespace duet {

namespace {

// Before anything is built on the values.
const DistributedOptions& with_same_model(Task& task, const DistributedOptions& options) {
  check_options(options);
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

// 52 bits, which a double holds exactly.
double DistributedStep::fingerprint() const {
  const uint64_t model = hash_with(gradients_.layout(), broadcasts_buffers_ ? buffers_.layout() : 0);
  const uint64_t hash = hash_with(model, settings_.hash());
  return static_cast<double>(hash >> 12);
}

void DistributedStep::agree_anew() {
  settings_.agree_anew();
  gradients_.agree_anew();
  if (broadcasts_buffers_) buffers_.agree_anew();
}

void DistributedStep::before_last_backward(const StepResult& share) {
  values_.start(share);
  gradients_.arm();
}

void DistributedStep::after_backward(StepResult& output, bool has_batch) {
  if (!has_batch) values_.start(output);
  gradients_.finish();
  values_.finish(output);
}

void DistributedStep::after_step() {
  if (broadcasts_buffers_) buffers_.run(task_.named_buffers());
}

}  // namespace duet
