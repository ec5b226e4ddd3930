#include "graph/explain/number_probe.h"
#include <chrono>
#include "base/detail/bits.h"
#include "base/error.h"

namespace duet {

namespace {

using Reach = StepExplanation::Reach;

constexpr std::chrono::seconds kTime{20};  // for all numbers of all groups: a user waits for the answer

// Bits of everything that a step changes, but for the numbers themselves.
std::vector<std::string> bits_of(const TrainStep& step) {
  std::vector<std::string> hashes;
  for (const auto& item : step.parameters()) hashes.push_back(bits_hash(item.second.detach()));
  for (const auto& [name, tensor] : step.mutable_state()) {
    if (name != "optimizer.numbers") hashes.push_back(bits_hash(tensor));
  }
  return hashes;
}

}  // namespace

// A schedule would write over what is set for one step only.
void NumberProbe::hold_present_values() {
  sandbox_.restore();
  eager_();
  std::vector<StepExplanation::Number> numbers;
  std::vector<double> values;
  for (std::size_t group = 0; group < step_.group_count(); ++group) {
    for (const std::string& name : step_.names()) {
      if (!step_.has(group, name)) continue;
      numbers.push_back({group, name});
      values.push_back(step_.get(group, name));
    }
  }
  sandbox_.restore();
  for (std::size_t i = 0; i < numbers.size(); ++i) step_.set(numbers[i].group, numbers[i].name, values[i]);
}

NumberProbe::Left NumberProbe::left_by(const RunStep& run, int steps) {
  sandbox_.restore();
  for (int i = 0; i < steps; ++i) run();
  Left left = bits_of(step_);
  sandbox_.restore();
  return left;
}

bool NumberProbe::changes(const RunStep& run, Baseline& baseline) {
  if (left_by(run, 1) != baseline.one) return true;
  return left_by(run, 2) != baseline.two;
}

// A value far away: what a small change does may be lost in rounding. False if no other value is allowed.
bool NumberProbe::set_another(std::size_t group, const std::string& name) {
  const double value = step_.get(group, name);
  for (const double other : {value / 2 + 0.25, value / 2 + 0.125, value / 2, value * 2, value + 1, value - 1}) {
    if (other == value) continue;
    try {
      step_.set(group, name, other);
      return true;
    } catch (const ConfigError&) {  // out of the number's range
    }
  }
  return false;
}

Reach NumberProbe::reach_of(std::size_t group, const std::string& name) {
  const double value = step_.get(group, name);
  std::vector<int64_t> key, other_key;
  step_.append_key(key);
  if (!set_another(group, name)) return Reach::kUntried;
  step_.append_key(other_key);
  if (key != other_key) {
    step_.set(group, name, value);
    return Reach::kCapturesAnew;
  }
  const bool in_replay = changes(replay_, replayed_);
  const bool in_eager = in_replay || changes(eager_, run_);
  step_.set(group, name, value);
  return in_replay ? Reach::kChanges : in_eager ? Reach::kFrozen : Reach::kNothingAtAll;
}

std::vector<StepExplanation::Number> NumberProbe::probe_all() {
  const auto start = std::chrono::steady_clock::now();
  hold_present_values();
  replayed_ = {left_by(replay_, 1), left_by(replay_, 2)};
  run_ = {left_by(eager_, 1), left_by(eager_, 2)};
  std::vector<StepExplanation::Number> numbers;
  for (std::size_t group = 0; group < step_.group_count(); ++group) {
    for (const std::string& name : step_.names()) {
      if (!step_.has(group, name)) continue;
      const bool in_time = std::chrono::steady_clock::now() - start < kTime;
      numbers.push_back({group, name, in_time ? reach_of(group, name) : Reach::kUntried});
    }
  }
  return numbers;
}

}  // namespace duet
