#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <c10/util/StringUtil.h>
#include "../base/device.h"
#include "../base/error.h"
#include "data_source.h"

namespace duet {

// A stacked torch::data::Example<> (or anything with tensors `data` and `target`) as a Batch.
struct ExampleToBatch {
  std::string data = "image", target = "target";

  template <class Example>
    requires requires(const Example& example) {
      example.data.sizes();
      example.target.sizes();
    }
  Batch operator()(const Example& example) const {
    return {{data, example.data}, {target, example.target}};
  }
};

struct TorchDataOptions {
  uint64_t seed = 0;              // together with the epoch it decides what the loader's sampler draws
  int64_t batches_per_epoch = 0;  // a torch::data loader cannot tell; 0: unknown
};

// A DataSource over a loader of torch::data::make_data_loader, which it owns; include <torch/data.h> yourself.
// `Convert` makes a Batch of the loader's batch; data sets that are not mapped to Stack<> need one.
//
// The sampler draws its order at the start of an epoch, from the default generator: it is seeded by (seed, epoch) for
// that moment, and the model's random numbers do not notice. A torch::data sampler cannot be moved from outside,
// so a resume reads and drops the batches of the epoch that were given out before; random transforms in the data
// set draw from the default generator and are not repeated. What a worker draws so while a step runs makes graph mode
// run that step eager: give its transforms a generator of their own. A loader with workers must have enforce_ordering,
// its default; start_epoch in the middle of an epoch reads the rest of it, as such a loader demands.
template <class Loader, class Convert = ExampleToBatch>
class TorchDataSource : public DataSource {
 public:
  explicit TorchDataSource(std::unique_ptr<Loader> loader, Convert convert = {}, TorchDataOptions options = {})
      : loader_(std::move(loader)), convert_(std::move(convert)), options_(options) {
    require<ConfigError>(loader_ != nullptr, "[TorchDataSource] found no loader, expected one; pass a loader");
  }

  void start_epoch(int64_t epoch) override {
    const bool go_on = resumed_ && epoch == epoch_;
    epoch_ = epoch;
    if (!go_on) given_ = 0;
    begin();
  }

  std::optional<Batch> next() override {
    if (!started_) begin();
    if (!advance()) return std::nullopt;
    std::optional<Batch> batch(convert_(**position_));
    given_ = fetched_;
    return batch;
  }

  int64_t batches_per_epoch() const override { return options_.batches_per_epoch; }

  StateDict state_dict() const override {
    StateDict state;
    state.set("epoch", StateValue(epoch_));
    state.set("batches", StateValue(given_));
    state.set("seed", StateValue(static_cast<int64_t>(options_.seed)));
    return state;
  }

  void load_state_dict(const StateDict& state) override {
    const int64_t epoch = state.integer("epoch"), given = state.integer("batches"), seed = state.integer("seed");
    if (epoch < 0 || given < 0) {
      throw CheckpointError(c10::str("[TorchDataSource] found epoch ", epoch, " and batches ", given,
                                     ", expected numbers from 0; the checkpoint was written by something else"));
    }
    epoch_ = epoch;
    given_ = given;
    options_.seed = static_cast<uint64_t>(seed);
    resumed_ = true;
    started_ = false;
  }

 private:
  using Iterator = decltype(std::declval<Loader&>().begin());

  // Starts the loader anew and skips what was given out already.
  void begin() {
    if (loader_->options().workers > 0) {  // it refuses to start while batches are under way
      while (advance()) {
      }
    }
    {
      const uint64_t mixed = options_.seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(epoch_);
      const CpuSeedGuard seeded(mixed);
      position_.emplace(loader_->begin());
    }
    fetched_ = 0;
    started_ = true;
    resumed_ = false;
    while (fetched_ < given_) {
      if (advance()) continue;
      throw CheckpointError(c10::str("[TorchDataSource] found ", fetched_, " batches in epoch ", epoch_,
                                     ", expected the ", given_, " given out before the checkpoint; resume with the ",
                                     "same data and batch size"));
    }
  }

  // Moves to the next batch, late: the iterator fetches it in its ++.
  bool advance() {
    if (!position_) return false;
    if (fetched_ > 0) ++*position_;
    if (*position_ == loader_->end()) {
      position_.reset();
      return false;
    }
    ++fetched_;
    return true;
  }

  std::unique_ptr<Loader> loader_;
  Convert convert_;
  TorchDataOptions options_;
  std::optional<Iterator> position_;  // nothing at the end of the epoch
  int64_t epoch_ = 0;
  int64_t given_ = 0;     // batches of the epoch given out
  int64_t fetched_ = 0;   // batches of the epoch read
  bool started_ = false;  // position_ belongs to epoch_
  bool resumed_ = false;  // given_ was loaded: the next start_epoch of that epoch keeps it
};

// The same, with the loader's type deduced: make_torch_data_source(torch::data::make_data_loader(...)).
template <class Loader, class Convert = ExampleToBatch>
std::unique_ptr<TorchDataSource<Loader, Convert>> make_torch_data_source(std::unique_ptr<Loader> loader,
                                                                         Convert convert = {},
                                                                         TorchDataOptions options = {}) {
  return std::make_unique<TorchDataSource<Loader, Convert>>(std::move(loader), std::move(convert), options);
}

}  // namespace duet
