#include "graph/explain/step_explainer.h"
#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <c10/core/impl/VirtualGuardImpl.h>
#include "base/detail/bits.h"
#include "base/detail/stopwatch.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "core/detail/user_place.h"
#include "graph/detail/captured_step.h"
#include "graph/explain/step_sandbox.h"

namespace duet {

namespace {

// Hooks whose code is captured take part, those that act between kernels do not: theirs is no part of the recording,
// and may write files.
class InStepAlone : public ForwardingObserver {
 public:
  using ForwardingObserver::ForwardingObserver;

  void in_step(StepView& view) override {
    if (!left_out_.empty()) return;
    if (!trying_) return ForwardingObserver::in_step(view);
    try {
      ForwardingObserver::in_step(view);
    } catch (const std::exception& error) {
      left_out_ = first_line(error);
    }
  }

  // In the first step alone what hooks throw means that they are left out: before a run they may not be ready.
  void tried() { trying_ = false; }
  const std::string& left_out() const { return left_out_; }

 private:
  void at_split(SplitPoint, const StepView&, const std::function<void()>&) override {}

  bool trying_ = true;
  std::string left_out_;
};

using Reach = StepExplanation::Reach;

// Finds out what each hyper-parameter does to a captured step: another value of it must change what a replay leaves in
// weights and state. A number that reached the recording as a host number does not.
class NumberProbe {
 public:
  using RunStep = std::function<void()>;  // from the state that there is, begin() included

  NumberProbe(TrainStep& step, StepSandbox& sandbox, RunStep replay, RunStep eager)
      : step_(step), sandbox_(sandbox), replay_(std::move(replay)), eager_(std::move(eager)) {}

  // Of every number of every group. Numbers that follow a schedule keep the value of the present step meanwhile.
  std::vector<StepExplanation::HyperParameter> probe_all() {
    constexpr double kSeconds = 20;  // a user waits for the answer
    const Stopwatch time;
    std::vector<StepExplanation::HyperParameter> found;
    for (const Number& number : held_numbers()) {
      found.push_back({number.group, number.name, time.seconds() < kSeconds ? reach_of(number) : Reach::kUntried});
    }
    return found;
  }

 private:
  struct Number {
    std::size_t group;
    std::string name;
    double value;
  };
  using Left = std::vector<std::string>;  // bits of all that steps have left

  // All numbers, set to the values that the present step uses: a schedule would write over what is set for one step
  // only. The learning rates come first: time may not do for all.
  std::vector<Number> held_numbers() {
    sandbox_.restore();
    eager_();
    std::vector<Number> numbers;
    for (std::size_t group = 0; group < step_.group_count(); ++group) {
      for (const std::string& name : step_.names()) {
        if (step_.has(group, name)) numbers.push_back({group, name, step_.get(group, name)});
      }
    }
    sandbox_.restore();
    for (const Number& number : numbers) step_.set(number.group, number.name, number.value);
    std::ranges::stable_partition(numbers, [](const Number& number) { return number.name == "lr"; });
    return numbers;
  }

  Reach reach_of(const Number& number) {
    std::vector<int64_t> key, other_key;
    step_.append_key(key);
    const std::optional<double> other = another_value(number);
    step_.append_key(other_key);
    step_.set(number.group, number.name, number.value);
    if (!other) return Reach::kUntried;
    if (key != other_key) return Reach::kCapturesAnew;
    if (changes(replay_, replayed_, number, *other)) return Reach::kChangesResult;
    return changes(eager_, run_, number, *other) ? Reach::kFrozen : Reach::kNoEffect;
  }

  // A value far away, to which the number is set: what a small change does may be lost in rounding. None if no other
  // value is allowed.
  std::optional<double> another_value(const Number& number) {
    const double value = number.value;
    for (const double other : {value / 2 + 0.25, value / 2 + 0.125, value / 2, value * 2, value + 1, value - 1}) {
      if (other == value) continue;
      try {
        step_.set(number.group, number.name, other);
        return other;
      } catch (const ConfigError&) {  // out of the number's range
      }
    }
    return std::nullopt;
  }

  bool changes(const RunStep& run, Left& as_it_is, const Number& number, double other) {
    if (as_it_is.empty()) as_it_is = left_by(run);
    step_.set(number.group, number.name, other);
    const bool same = left_by(run) == as_it_is;
    step_.set(number.group, number.name, number.value);
    return !same;
  }

  // Bits of everything that two steps change, but for the numbers themselves: momentum does nothing in the first.
  Left left_by(const RunStep& run) {
    sandbox_.restore();
    for (int i = 0; i < 2; ++i) run();
    Left left;
    for (const auto& item : step_.parameters()) left.push_back(bits_hash(item.second.detach()));
    for (const auto& [name, tensor] : step_.mutable_state()) {
      if (name != "optimizer.numbers") left.push_back(bits_hash(tensor));
    }
    sandbox_.restore();
    return left;
  }

  TrainStep& step_;
  StepSandbox& sandbox_;
  RunStep replay_, eager_;
  Left replayed_, run_;  // with the numbers as they are; filled when they are needed
};

class Explainer {
 public:
  Explainer(TrainStep& step, const CaptureMethod& method, const MicroBatches& micro_batches, StepObserver& observer)
      : step_(step),
        method_(method),
        micro_batches_(micro_batches),
        hooks_(observer),
        inputs_(micro_batches),
        sandbox_(step) {}

  void fill(StepExplanation& explanation) {
    warm_up();
    explanation.left_out = hooks_.left_out();
    record(explanation);
    explanation.eager_us = best_of(3, [this] { run_eager(); });
    if (!explanation.obstacles.empty() || !is_ready(explanation) || !check_host_code(explanation)) return;
    explanation.captured = true;
    explanation.keeps_tensors = captured_->needs_host_code();
    explanation.reads = captured_->reads() != nullptr ? static_cast<int64_t>(captured_->reads()->size()) : 0;
    captured_->segments().try_kernels();
    explanation.ops = captured_->segments().ops();
    explanation.bytes = captured_->bytes();
    explanation.replay_us = best_of(5, [this] { replay(); });
    NumberProbe probe(step_, sandbox_, [this] { replay(); }, [this] { run_eager(); });
    explanation.hyper_parameters = probe.probe_all();
  }

 private:
  static constexpr int64_t kCaptures = 2;  // a device's, of which the first may differ from what was recorded

  // As before a real capture: what the code makes once (masks, buffers) is there afterwards.
  void warm_up() {
    for (int64_t i = 0; i < method_.eager_steps; ++i) {
      sandbox_.watch([this] { run_eager(); });
      hooks_.tried();
      sandbox_.restore();
    }
  }

  void record(StepExplanation& explanation) {
    auto& found = explanation.obstacles;  // each place once, with the user's code that it comes from
    const auto listener = [&found](const std::string& op, const Obstacle& obstacle, const std::string& where) {
      const StepExplanation::Obstacle entry{op, obstacle.what, where, user_place().value_or(""), obstacle.way_out, 1};
      const auto same = std::ranges::find_if(found, [&entry](const StepExplanation::Obstacle& other) {
        return other.what == entry.what && other.where == entry.where && other.source == entry.source;
      });
      same == found.end() ? found.push_back(entry) : void(++same->times);
    };
    captured_ = std::make_unique<CapturedStep>(micro_batches_, method_.make_replay());
    captured_->record(step_, begin_step(), hooks_, {.listener = listener});
    explanation.reason = found.empty() ? captured_->failure() : std::string();
    sandbox_.restore();
  }

  bool is_ready(StepExplanation& explanation) {
    if (!captured_->failure().empty()) {
      explanation.reason = captured_->failure();
      return false;
    }
    for (int64_t i = 0; i < kCaptures && !captured_->segments().is_ready(); ++i) {
      const auto captured = captured_->capture_and_replay(step_, begin_step(), hooks_);
      sandbox_.restore();
      if (!captured) {
        explanation.reason = captured_->failure();
        return false;
      }
      if (captured->outcome == TraceCheck::Outcome::kDiffers) explanation.changes = captured_->check().difference();
    }
    return captured_->segments().is_ready();
  }

  bool check_host_code(StepExplanation& explanation) {
    const auto outcome = captured_->check_and_replay(step_, begin_step(), hooks_).outcome;
    sandbox_.restore();
    if (outcome == TraceCheck::Outcome::kDiffers) explanation.changes = captured_->check().difference();
    if (outcome == TraceCheck::Outcome::kUnreadable) explanation.reason = captured_->check().difference();
    return outcome != TraceCheck::Outcome::kUnreadable;
  }

  // On copies: a step that writes into its batch gives it back so, and this one is the caller's.
  const MicroBatches& begin_step() {
    inputs_.fill(micro_batches_);
    step_.begin(inputs_.micro_batches());
    return inputs_.micro_batches();
  }

  void run_eager() { step_.run(begin_step(), hooks_); }

  void replay() {
    step_.begin(micro_batches_);
    captured_->replay(step_, micro_batches_, hooks_);
  }

  // Microseconds of the fastest of some runs, each from the same state.
  double best_of(int runs, const std::function<void()>& run) {
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < runs; ++i) {
      const Stopwatch time;
      run();
      wait_for_device();
      best = std::min(best, 1e6 * time.seconds());
      sandbox_.restore();
    }
    return best;
  }

  void wait_for_device() const {
    const at::Device device = step_.parameters().front().second.device();
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }

  TrainStep& step_;
  const CaptureMethod& method_;
  const MicroBatches& micro_batches_;
  InStepAlone hooks_;
  StaticInputs inputs_;
  std::unique_ptr<CapturedStep> captured_;
  StepSandbox sandbox_;  // goes first: it takes the captured gradients away
};

}  // namespace

StepExplanation explain_step(TrainStep& step, const CaptureMethod& method, const MicroBatches& micro_batches,
                             StepObserver& observer) {
  StepExplanation explanation;
  Explainer(step, method, micro_batches, observer).fill(explanation);
  return explanation;
}

}  // namespace duet
