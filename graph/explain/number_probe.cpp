#include "graph/explain/number_probe.h"
#include <algorithm>
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

// All numbers, set to the values that the present step uses: a schedule would write over what is set for one step only.
// The learning rates come first: time may not do for all.
std::vector<NumberProbe::Number> NumberProbe::held_numbers() {
  sandbox_.restore();
  eager_();
  std::vector<Number> numbers;
  for (std::size_t group = 0; group < step_.group_count(); ++group) {
    for (const std::string& name : step_.names()) {
      if (step_.has(group, name)) numbers.push_back({group, name, step_.get(group, name), 0});
    }
  }
  sandbox_.restore();
  for (const Number& number : numbers) step_.set(number.group, number.name, number.value);
  std::stable_partition(numbers.begin(), numbers.end(), [](const Number& number) { return number.name == "lr"; });
  return numbers;
}

// By two steps: momentum does nothing in the first.
NumberProbe::Left NumberProbe::left_by(const RunStep& run) {
  sandbox_.restore();
  for (int i = 0; i < 2; ++i) run();
  Left left = bits_of(step_);
  sandbox_.restore();
  return left;
}

bool NumberProbe::changes(const RunStep& run, Left& as_it_is, const Number& number) {
  if (as_it_is.empty()) as_it_is = left_by(run);
  step_.set(number.group, number.name, number.other);
  const bool same = left_by(run) == as_it_is;
  step_.set(number.group, number.name, number.value);
  return !same;
}

// A value far away: what a small change does may be lost in rounding. False if no other value is allowed. Leaves the
// number at the other value.
bool NumberProbe::set_another(Number& number) {
  const double value = number.value;
  for (const double other : {value / 2 + 0.25, value / 2 + 0.125, value / 2, value * 2, value + 1, value - 1}) {
    if (other == value) continue;
    try {
      step_.set(number.group, number.name, other);
      number.other = other;
      return true;
    } catch (const ConfigError&) {  // out of the number's range
    }
  }
  return false;
}

Reach NumberProbe::reach_of(Number number) {
  std::vector<int64_t> key, other_key;
  step_.append_key(key);
  if (!set_another(number)) return Reach::kUntried;
  step_.append_key(other_key);
  step_.set(number.group, number.name, number.value);
  if (key != other_key) return Reach::kCapturesAnew;
  if (changes(replay_, replayed_, number)) return Reach::kChanges;
  return changes(eager_, run_, number) ? Reach::kFrozen : Reach::kNothingAtAll;
}

std::vector<StepExplanation::Number> NumberProbe::probe_all() {
  const auto start = std::chrono::steady_clock::now();
  std::vector<StepExplanation::Number> found;
  for (const Number& number : held_numbers()) {
    const bool in_time = std::chrono::steady_clock::now() - start < kTime;
    found.push_back({number.group, number.name, in_time ? reach_of(number) : Reach::kUntried});
  }
  return found;
}

}  // namespace duet
