#pragma once

#include <functional>
#include <memory>
#include <utility>
#include "../base/options.h"
#include "data_source.h"
#include "dataset.h"
#include "sampler.h"

namespace duet {

class BatchWorkers;

struct DataLoaderOptions {
  int64_t batch_size = 1;   // of one rank
  bool shuffle = false;     // an order of its own for each epoch, drawn from `seed`
  uint64_t seed = 0;        // also of random transforms
  int num_workers = 0;      // threads that read ahead; 0: read when next() is called
  int prefetch = 2;         // batches ahead per worker
  bool drop_last = false;   // leave out a last batch that is not full
  bool pin_memory = false;  // page-locked host memory, for copies to a CUDA device

  static const OptionFields& fields();
};

// A DataSource over a dataset and a sampler, its own EpochSampler unless it is given one. Where several ranks train,
// each reads its part of the order of its own sampler, as DistributedSampler cuts it; one that is given decides itself.
// Workers may finish in any order; batches come in the sampler's, whatever their number. An exception of a worker is
// rethrown by the next() that would have given its batch. A loader that may be told to stop reads in a thread without
// workers too, always the same, unless the dataset is in memory. A read that hangs is left behind at the end, with the
// dataset.
class DataLoader : public DataSource {
 public:
  DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options = {});
  DataLoader(std::shared_ptr<const Dataset> dataset, std::unique_ptr<Sampler> sampler, DataLoaderOptions options);
  ~DataLoader() override;

  void start_epoch(int64_t epoch) override;
  std::optional<Batch> next() override;
  void set_should_stop(ShouldStop should_stop) override { should_stop_ = std::move(should_stop); }
  int64_t batches_per_epoch() const override;
  int64_t batches_left() const override;
  std::optional<bool> shuffles() const override { return sampler_->shuffles(); }
  Batch denormalized(const Batch& batch) const override;
  std::string sample_name(int64_t id) const override;
  std::vector<std::string> class_names() const override;
  void set_shard(int64_t rank, int64_t world_size) override;
  std::optional<DataShard> shard() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Drawn {
    std::vector<int64_t> indices;
    std::vector<SampleDraw> draws;
  };
  Drawn next_drawn();
  std::function<Batch()> reading(Drawn drawn) const;
  int64_t batches_of(int64_t samples) const;

  std::shared_ptr<const Dataset> dataset_;
  std::unique_ptr<Sampler> sampler_;
  DistributedSampler* own_sampler_ = nullptr;  // sampler_, unless it was given
  DataLoaderOptions options_;
  StateDict position_;  // the sampler's state after the last batch given out
  ShouldStop should_stop_;
  std::unique_ptr<BatchWorkers> workers_;
};

}  // namespace duet
