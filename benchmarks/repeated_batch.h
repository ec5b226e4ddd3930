#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include "data/data_source.h"

namespace duet::benchmarks {

// One batch, so many times or without end: its loading is not what is measured.
class RepeatedBatch : public DataSource {
 public:
  explicit RepeatedBatch(Batch batch, int64_t count = 0) : batch_(std::move(batch)), count_(count) {}
  void start_epoch(int64_t /*epoch*/) override { given_ = 0; }
  std::optional<Batch> next() override {
    return given_++ < count_ || count_ == 0 ? std::optional(batch_) : std::nullopt;
  }
  int64_t batches_per_epoch() const override { return count_; }

 private:
  Batch batch_;
  int64_t count_, given_ = 0;
};

}  // namespace duet::benchmarks
