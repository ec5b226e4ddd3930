#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <ATen/ops/arange.h>
#include "data/data_loader.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "distributed/communicator.h"
#include "tests/support/toy_tasks.h"

// Data that ranks share out.

namespace duet::testing {

// `samples` of a toy task with their numbers as "id".
inline NamedTensors numbered_samples(const ToyTask& task, int64_t samples) {
  NamedTensors items = task.batch(samples, 7).items();
  items.emplace_back("id", at::arange(samples));
  return items;
}

// This rank's share of them in batches of `global_batch` over all ranks.
inline std::unique_ptr<DataLoader> share_of(NamedTensors samples, int64_t global_batch, const Communicator* ranks,
                                            bool shuffle = true) {
  const int64_t count = samples.front().second.size(0), world = ranks->world_size();
  std::unique_ptr<Sampler> sampler = std::make_unique<EpochSampler>(count, shuffle, /*seed=*/3);
  sampler = std::make_unique<DistributedSampler>(std::move(sampler), ranks->rank(), world);
  return std::make_unique<DataLoader>(std::make_shared<TensorDataset>(std::move(samples)), std::move(sampler),
                                      DataLoaderOptions{.batch_size = global_batch / world});
}

// Calls a function before each batch.
class WatchedData : public ForwardingSource {
 public:
  WatchedData(std::unique_ptr<DataSource> data, std::function<void()> before_next)
      : ForwardingSource(*data), data_(std::move(data)), before_next_(std::move(before_next)) {}
  std::optional<Batch> next() override {
    before_next_();
    return data_->next();
  }

 private:
  std::unique_ptr<DataSource> data_;
  std::function<void()> before_next_;
};

}  // namespace duet::testing
