#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "../base/state_dict.h"
#include "data_shard.h"

namespace duet {

// Decides which samples come next. Draws from a generator of its own: the default generator belongs to the
// model. A function of (seed, epoch, position), so a resume advances indices and replays nothing.
class Sampler : public Stateful {
 public:
  virtual void start_epoch(int64_t epoch) = 0;
  // Up to `count` further indices; fewer, or none, at the end of the epoch.
  virtual std::vector<int64_t> next(int64_t count) = 0;
  // Samples of a whole epoch; 0 if endless.
  virtual int64_t size() const = 0;
  // Those that next() has yet to give out in this epoch; -1 if unknown or endless.
  virtual int64_t samples_left() const { return -1; }
  // Whether every epoch has an order of its own; nothing if the sampler cannot tell.
  virtual std::optional<bool> shuffles() const { return std::nullopt; }
  // Nothing if it knows of no other ranks.
  virtual std::optional<DataShard> shard() const { return std::nullopt; }
};

// Every sample once per epoch: in file order, or in an order drawn from (seed, epoch).
class EpochSampler : public Sampler {
 public:
  EpochSampler(int64_t dataset_size, bool shuffle, uint64_t seed);
  void start_epoch(int64_t epoch) override;
  std::vector<int64_t> next(int64_t count) override;
  int64_t size() const override { return size_; }
  int64_t samples_left() const override { return size_ - position_; }
  std::optional<bool> shuffles() const override { return shuffle_; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void draw();

  int64_t size_;
  bool shuffle_;
  uint64_t seed_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  bool resumed_ = false;  // the position was loaded: the next start_epoch of that epoch keeps it
  std::vector<int64_t> order_;
};

// Never ends: one drawn order after another, batches run across their borders.
class InfiniteSampler : public Sampler {
 public:
  InfiniteSampler(int64_t dataset_size, bool shuffle, uint64_t seed);
  void start_epoch(int64_t /*epoch*/) override {}
  std::vector<int64_t> next(int64_t count) override;
  int64_t size() const override { return 0; }
  std::optional<bool> shuffles() const override { return pass_.shuffles(); }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  EpochSampler pass_;
  int64_t epoch_ = 0;
};

}  // namespace duet
