#include "graph/explain/step_explainer.h"
#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <c10/core/impl/VirtualGuardImpl.h>
#include "base/detail/text.h"
#include "graph/detail/captured_step.h"
#include "graph/explain/code_place.h"
#include "graph/explain/number_probe.h"
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
    captured_->try_kernels();
    explanation.ops = captured_->replayed().segments().ops();
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
      const StepExplanation::Obstacle entry{op, obstacle.what, where, place_in_user_code(), obstacle.way_out, 1};
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
    for (int64_t i = 0; i < kCaptures && !captured_->replayed().segments().is_ready(); ++i) {
      const auto captured = captured_->capture_and_replay(step_, begin_step(), hooks_);
      sandbox_.restore();
      if (!captured) {
        explanation.reason = captured_->failure();
        return false;
      }
      if (captured->outcome == TraceCheck::Outcome::kDiffers) explanation.changes = captured_->check().difference();
    }
    return captured_->replayed().segments().is_ready();
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
      const auto start = std::chrono::steady_clock::now();
      run();
      wait_for_device();
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
      best = std::min(best, time.count());
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
