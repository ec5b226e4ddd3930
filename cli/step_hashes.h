#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "core/hook.h"

namespace duet {

class Task;

// The bits of what a run has after a step, as hashes by name.
struct StepHashes {
  int64_t step = 0;  // 0: before the first one
  std::vector<std::pair<std::string, std::string>> tensors{};
};

// Adds weights and buffers.
void add_hashes(const Task& task, StepHashes& hashes);

struct HashDifference {
  int64_t step = 0;
  std::string tensor{};   // the first of that step
  int64_t differing = 0;  // tensors of that step, out of
  int64_t compared = 0;
};

// Where two runs part; nothing if they do not. A run that is longer parts where the other ends.
std::optional<HashDifference> first_difference(const std::vector<StepHashes>& a, const std::vector<StepHashes>& b);

// Fills `steps`, which must outlive it, after each of the first `limit` steps: loss, logged values, gradients (the last
// layer's first, as backward makes them), weights, buffers. Waits for the device.
class StepHashHook : public Hook {
 public:
  StepHashHook(std::vector<StepHashes>& steps, int64_t limit) : steps_(steps), limit_(limit) {}
  std::string name() const override { return "step_hashes"; }
  int priority() const override { return kLowest; }
  void after_train_iter(TrainContext& context) override;

 private:
  std::vector<StepHashes>& steps_;
  int64_t limit_;
};

}  // namespace duet
