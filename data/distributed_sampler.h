#pragma once

#include <memory>
#include "sampler.h"

namespace duet {

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
};

}  // namespace duet
