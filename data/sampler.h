#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
#include "../base/state_dict.h"
#include "data_source.h"
#include "dataset.h"

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
  // Of the pass over the samples that the next index belongs to, from 0.
  virtual int64_t pass() const { return 0; }
  // Of each index that next() gave last: its pass, and how often that pass had given it before. The seed is the
  // loader's. Empty: all belong to one pass, which gives each sample once.
  virtual std::vector<SampleDraw> draws() const { return {}; }
  // Whether every epoch has an order of its own; nothing if the sampler cannot tell.
  virtual std::optional<bool> shuffles() const { return std::nullopt; }
  // Nothing if it knows of no other ranks.
  virtual std::optional<DataShard> shard() const { return std::nullopt; }
};

// Every sample once per epoch: in file order, or in an order drawn from (seed, epoch). Or samples drawn with
// replacement, each as often as its weight says.
class EpochSampler : public Sampler {
 public:
  // Throws DataError for a dataset without samples.
  EpochSampler(int64_t dataset_size, bool shuffle, uint64_t seed);
  // `weights`: one for each sample, not all 0; `count`: samples of an epoch. Throws ConfigError for bad ones.
  EpochSampler(const std::vector<double>& weights, int64_t count, uint64_t seed);
  void start_epoch(int64_t epoch) override;
  std::vector<int64_t> next(int64_t count) override;
  int64_t size() const override { return size_; }
  int64_t samples_left() const override { return size_ - position_; }
  int64_t pass() const override { return epoch_; }
  std::vector<SampleDraw> draws() const override;
  std::optional<bool> shuffles() const override { return shuffle_; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void draw();
  void draw_with_replacement();

  int64_t size_;
  std::vector<double> weight_sums_;  // of all samples up to each; empty: every sample once
  bool shuffle_;
  uint64_t seed_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  bool resumed_ = false;  // the position was loaded: the next start_epoch of that epoch keeps it
  std::vector<int64_t> order_;
  std::vector<int64_t> occurrences_;  // of each index of order_; empty: every sample once
  int64_t given_ = 0;                 // by the last next(), those before position_
};

// Never ends: one drawn order after another, batches run across their borders.
class InfiniteSampler : public Sampler {
 public:
  InfiniteSampler(int64_t dataset_size, bool shuffle, uint64_t seed);
  explicit InfiniteSampler(EpochSampler pass) : pass_(std::move(pass)) {}
  void start_epoch(int64_t /*epoch*/) override {}
  std::vector<int64_t> next(int64_t count) override;
  int64_t size() const override { return 0; }
  int64_t pass() const override { return epoch_; }
  std::vector<SampleDraw> draws() const override { return draws_; }
  std::optional<bool> shuffles() const override { return pass_.shuffles(); }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  EpochSampler pass_;
  int64_t epoch_ = 0;
  std::vector<SampleDraw> draws_;
};

// For EpochSampler, a weight for each sample with such a label: that of its class in `class_weights`, or without these
// one that makes all classes as frequent; labels below 0 are ignored and get 0. Throws ConfigError if there are no
// labels, one is 2^31 or more, or a class has no weight.
std::vector<double> sample_weights(const std::vector<int64_t>& labels, const std::vector<double>& class_weights = {});

// One rank's share of what another sampler gives: of every global batch of world_size * count indices, each rank takes
// `count` neighbours, so that all ranks together see the samples of one process with that batch, once each. What is
// left at the end of an epoch is shared out evenly, the lower ranks first; a rank may get nothing then.
//
// The saved position is the global one: a run goes on at another world size with the very next sample, as long as the
// ranks divide global batches of whatever size by the rule above.
class DistributedSampler : public Sampler {
 public:
  // `drop_last` leaves out a last global batch that is not full, on all ranks. Throws ConfigError for a rank that is
  // not in [0, world_size).
  DistributedSampler(std::unique_ptr<Sampler> global, int64_t rank, int64_t world_size, bool drop_last = false);

  // Another part from the next indices on. Throws as the constructor does.
  void set_shard(int64_t rank, int64_t world_size);
  bool reads(int64_t rank, int64_t world_size) const { return rank_ == rank && world_size_ == world_size; }

  void start_epoch(int64_t epoch) override { global_->start_epoch(epoch); }
  std::vector<int64_t> next(int64_t count) override;
  // Such that every rank counts the same batches per epoch.
  int64_t size() const override;
  int64_t samples_left() const override;
  int64_t pass() const override { return global_->pass(); }
  std::vector<SampleDraw> draws() const override { return draws_; }
  std::optional<bool> shuffles() const override { return global_->shuffles(); }
  // Trainers take the parts for those of their ranks; a sampler of other parts overrides this.
  std::optional<DataShard> shard() const override;
  StateDict state_dict() const override { return global_->state_dict(); }
  void load_state_dict(const StateDict& state) override { global_->load_state_dict(state); }

 private:
  int64_t share_of(int64_t samples) const;

  std::unique_ptr<Sampler> global_;
  int64_t rank_ = 0, world_size_ = 1;
  bool drop_last_;
  std::vector<SampleDraw> draws_;
};

}  // namespace duet
