#include "data/distributed_sampler.h"
#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

DistributedSampler::DistributedSampler(std::unique_ptr<Sampler> global, int64_t rank, int64_t world_size,
                                       bool drop_last)
    : global_(std::move(global)), drop_last_(drop_last) {
  require<ConfigError>(global_ != nullptr,
                       "[DistributedSampler] found no sampler, expected the one to share out; pass an EpochSampler");
  set_shard(rank, world_size);
}

void DistributedSampler::set_shard(int64_t rank, int64_t world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw ConfigError(
        c10::str("[DistributedSampler] found rank ", rank, " of ", world_size, ", expected a rank in [0, world_size)"));
  }
  if (drop_last_ && global_->size() > 0 && global_->size() < world_size) {
    throw DataError(
        c10::str("[DistributedSampler] found ", global_->size(), " samples for ", world_size,
                 " ranks with drop_last, expected at least one for each; unset drop_last, or start fewer ranks"));
  }
  rank_ = rank;
  world_size_ = world_size;
}

std::vector<int64_t> DistributedSampler::next(int64_t count) {
  const std::vector<int64_t> all = global_->next(count * world_size_);
  const auto found = static_cast<int64_t>(all.size());
  if (found < count * world_size_ && drop_last_) return {};
  const int64_t each = found / world_size_, more = found % world_size_;
  const int64_t first = rank_ * each + std::min(rank_, more);
  return {all.begin() + first, all.begin() + first + each + (rank_ < more ? 1 : 0)};
}

std::optional<DataShard> DistributedSampler::shard() const {
  if (world_size_ == 1) return std::nullopt;
  return DataShard{rank_, world_size_, drop_last_ ? "drop_last: true\n" : "drop_last: false\n"};
}

int64_t DistributedSampler::share_of(int64_t samples) const {
  const int64_t rounded_up = drop_last_ ? 0 : world_size_ - 1;
  return (samples + rounded_up) / world_size_;
}

int64_t DistributedSampler::size() const { return share_of(global_->size()); }

int64_t DistributedSampler::samples_left() const {
  const int64_t left = global_->samples_left();
  return left < 0 ? left : share_of(left);
}

}  // namespace duet
