#include "data/sampler.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <c10/util/StringUtil.h>
#include "base/detail/split_mix.h"
#include "base/error.h"
#include "data/detail/samples.h"

namespace duet {

namespace {

// A uniform number in [0, bound). The standard fixes what mt19937_64 draws but not what its distributions and
// std::shuffle make of it: an own rule keeps a run's order the same with every standard library.
uint64_t uniform_below(std::mt19937_64& generator, uint64_t bound) {
  const uint64_t limit = std::numeric_limits<uint64_t>::max() - std::numeric_limits<uint64_t>::max() % bound;
  uint64_t drawn = generator();
  while (drawn >= limit) drawn = generator();
  return drawn % bound;
}

}  // namespace

EpochSampler::EpochSampler(int64_t dataset_size, bool shuffle, uint64_t seed)
    : size_(dataset_size), shuffle_(shuffle), seed_(seed) {
  if (dataset_size < 1) {
    throw DataError(c10::str("[Sampler] found a dataset of ", dataset_size,
                             " samples, expected at least 1; check the dataset's files and limits"));
  }
}

EpochSampler::EpochSampler(const std::vector<double>& weights, int64_t count, uint64_t seed)
    : EpochSampler(count, true, seed) {
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight >= 0) || !std::isfinite(weight)) {
      throw ConfigError(c10::str("[Sampler] found a weight of ", weight, ", expected finite ones from 0"));
    }
    weight_sums_.push_back(sum += weight);
  }
  require<ConfigError>(std::isfinite(sum), "[Sampler] found weights whose sum is not finite; scale them down");
  require<ConfigError>(sum > 0, "[Sampler] found only weights of 0, expected one above; give each sample a weight");
}

void EpochSampler::start_epoch(int64_t epoch) {
  const bool go_on = resumed_ && epoch == epoch_;
  resumed_ = false;
  if (go_on) return;
  if (epoch != epoch_) order_.clear();
  epoch_ = epoch;
  position_ = given_ = 0;
}

std::vector<int64_t> EpochSampler::next(int64_t count) {
  resumed_ = false;
  if (order_.empty()) draw();
  const int64_t taken = std::clamp<int64_t>(count, 0, size_ - position_);
  const auto first = order_.begin() + position_;
  position_ += taken;
  given_ = taken;
  return {first, first + taken};
}

std::vector<SampleDraw> EpochSampler::draws() const {
  std::vector<SampleDraw> draws(static_cast<std::size_t>(given_), {.pass = epoch_});
  const auto first = static_cast<std::size_t>(position_ - given_);
  for (std::size_t i = 0; i < draws.size() && !occurrences_.empty(); ++i) draws[i].occurrence = occurrences_[first + i];
  return draws;
}

void EpochSampler::draw_with_replacement() {
  std::mt19937_64 generator(mixed_bits(mixed_bits(seed_) + static_cast<uint64_t>(epoch_)));
  // The last one with a weight: rounding must not lead past it.
  const auto last = std::lower_bound(weight_sums_.begin(), weight_sums_.end(), weight_sums_.back());
  for (int64_t& index : order_) {
    const double drawn = static_cast<double>(generator() >> 11) * 0x1.0p-53 * weight_sums_.back();
    index = std::min(std::upper_bound(weight_sums_.begin(), weight_sums_.end(), drawn), last) - weight_sums_.begin();
  }
  occurrences_.clear();
  std::vector<int64_t> counts(weight_sums_.size(), 0);
  for (const int64_t index : order_) occurrences_.push_back(counts[static_cast<std::size_t>(index)]++);
}

void EpochSampler::draw() {
  order_.resize(static_cast<size_t>(size_));
  if (!weight_sums_.empty()) return draw_with_replacement();
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (!shuffle_) return;
  std::mt19937_64 generator(mixed_bits(mixed_bits(seed_) + static_cast<uint64_t>(epoch_)));
  for (size_t last = order_.size() - 1; last > 0; --last) {
    std::swap(order_[last], order_[uniform_below(generator, last + 1)]);
  }
}

StateDict EpochSampler::state_dict() const {
  StateDict state;
  state.set("epoch", StateValue(epoch_));
  state.set("position", StateValue(position_));
  state.set("size", StateValue(size_));
  state.set("shuffle", StateValue(shuffle_));
  state.set("seed", StateValue(static_cast<int64_t>(seed_)));
  return state;
}

void EpochSampler::load_state_dict(const StateDict& state) {
  const int64_t epoch = state.integer("epoch");
  const int64_t position = state.integer("position");
  const int64_t seed = state.integer("seed");
  if (state.integer("size") != size_) {
    throw CheckpointError(c10::str("[Sampler] found a dataset of ", size_, " samples, expected ", state.integer("size"),
                                   " as in the checkpoint; resume with the same data, or load only the weights"));
  }
  if (state.flag("shuffle") != shuffle_) {
    throw CheckpointError(c10::str("[Sampler] found shuffle ", shuffle_ ? "on" : "off", ", expected ",
                                   shuffle_ ? "off" : "on",
                                   " as in the checkpoint; set it as before, or load only the weights"));
  }
  if (epoch < 0 || position < 0 || position > size_) {
    throw CheckpointError(c10::str("[Sampler] found epoch ", epoch, " and position ", position,
                                   ", expected an epoch from 0 and a position in [0, ", size_,
                                   "]; the checkpoint was written by something else"));
  }
  // The saved seed wins over this one: the rest of the epoch must be the rest of the same order.
  seed_ = static_cast<uint64_t>(seed);
  epoch_ = epoch;
  position_ = position;
  given_ = 0;
  order_.clear();
  resumed_ = true;
}

InfiniteSampler::InfiniteSampler(int64_t dataset_size, bool shuffle, uint64_t seed)
    : pass_(dataset_size, shuffle, seed) {}

std::vector<int64_t> InfiniteSampler::next(int64_t count) {
  std::vector<int64_t> indices = pass_.next(count);
  draws_ = pass_.draws();
  while (static_cast<int64_t>(indices.size()) < count) {
    pass_.start_epoch(++epoch_);
    const std::vector<int64_t> more = pass_.next(count - static_cast<int64_t>(indices.size()));
    const std::vector<SampleDraw> more_draws = pass_.draws();
    indices.insert(indices.end(), more.begin(), more.end());
    draws_.insert(draws_.end(), more_draws.begin(), more_draws.end());
  }
  return indices;
}

StateDict InfiniteSampler::state_dict() const { return pass_.state_dict(); }

void InfiniteSampler::load_state_dict(const StateDict& state) {
  pass_.load_state_dict(state);
  epoch_ = state.integer("epoch");
}

std::vector<SampleDraw> draws_of(const Sampler& sampler, int64_t pass, std::size_t count) {
  const std::vector<SampleDraw> draws = sampler.draws();
  if (draws.size() == count) return draws;
  if (draws.empty()) return std::vector<SampleDraw>(count, {.pass = pass});
  throw ConfigError(c10::str("[Sampler] found ", draws.size(), " draws() for the ", count,
                             " indices of next(), expected one for each; override draws() beside next()"));
}

std::vector<double> sample_weights(const std::vector<int64_t>& labels, const std::vector<double>& class_weights) {
  require<ConfigError>(!labels.empty(),
                       "[Sampler] found no classes in the dataset, expected an int64 'target' for each "
                       "sample; take sampler: default");
  constexpr int64_t kLabels = int64_t{1} << 31;
  const int64_t most = *std::max_element(labels.begin(), labels.end());
  if (most < 0 || most >= kLabels) {
    throw ConfigError(c10::str("[Sampler] found ", most, " for the largest label, expected one in [0, ", kLabels,
                               ") (those below 0 are ignored); correct the labels, or take sampler: default"));
  }
  if (!class_weights.empty() && most >= std::ssize(class_weights)) {
    throw ConfigError(c10::str("[Sampler] found ", class_weights.size(), " class_weights, expected ", most + 1,
                               ", one for each class of the data"));
  }
  std::map<int64_t, double> counts;
  for (const int64_t label : labels) counts[label] += 1;
  std::vector<double> weights;
  for (const int64_t label : labels) {
    const double of_class =
        label < 0 || class_weights.empty() ? 1 / counts[label] : class_weights[static_cast<std::size_t>(label)];
    weights.push_back(label < 0 ? 0 : of_class);
  }
  return weights;
}

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
  const int64_t pass = global_->pass();
  const std::vector<int64_t> all = global_->next(count * world_size_);
  const std::vector<SampleDraw> draws = draws_of(*global_, pass, all.size());
  draws_.clear();
  const auto found = static_cast<int64_t>(all.size());
  if (found < count * world_size_ && drop_last_) return {};
  const int64_t each = found / world_size_, more = found % world_size_;
  const int64_t first = rank_ * each + std::min(rank_, more), last = first + each + (rank_ < more ? 1 : 0);
  draws_.assign(draws.begin() + first, draws.begin() + last);
  return {all.begin() + first, all.begin() + last};
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

std::vector<int64_t> samples_of_split(int64_t size, const SplitRule& rule, const std::string& what) {
  require<DataError>(size > 0, what + ": found no sample, expected at least 1; correct the path");
  std::vector<int64_t> order =
      EpochSampler(size, /*shuffle=*/rule.split != "all", static_cast<uint64_t>(rule.seed)).next(size);
  const auto val_size = static_cast<std::ptrdiff_t>(std::llround(static_cast<double>(size) * rule.val_fraction));
  if (rule.split == "val") order.erase(order.begin() + val_size, order.end());
  if (rule.split == "train") order.erase(order.begin(), order.begin() + val_size);
  if (order.empty()) {
    throw DataError(c10::str(what, ": found no sample in split '", rule.split, "' of ", size, " with val_fraction ",
                             rule.val_fraction, ", expected at least 1; ", rule.split == "val" ? "raise" : "lower",
                             " val_fraction, or give more samples"));
  }
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace duet
