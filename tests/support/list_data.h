#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>
#include "data/data_source.h"

namespace duet::testing {

// These batches in each epoch. It keeps no position.
class ListData : public DataSource {
 public:
  explicit ListData(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  void start_epoch(int64_t /*epoch*/) override { next_ = 0; }
  std::optional<Batch> next() override {
    return next_ < batches_.size() ? std::optional(batches_[next_++]) : std::nullopt;
  }
  int64_t batches_per_epoch() const override { return static_cast<int64_t>(batches_.size()); }

 private:
  std::vector<Batch> batches_;
  std::size_t next_ = 0;
};

}  // namespace duet::testing
