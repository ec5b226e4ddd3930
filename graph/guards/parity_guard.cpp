#include "graph/guards/parity_guard.h"
#include <mutex>
#include <unordered_set>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "distributed/communicator.h"

namespace duet {

namespace {

// In-step code belongs to both runs; host code of hooks must not run twice in one step.
class WithoutSplitPoints : public StepObserver {
 public:
  explicit WithoutSplitPoints(StepObserver& inner) : inner_(inner) {}
  void in_step(StepView& view) override { inner_.in_step(view); }

 private:
  StepObserver& inner_;
};

NamedTensors state_of(const TrainStep& step, const CapturedStep& captured) {
  NamedTensors state = step.parameters();
  for (auto& item : step.mutable_state()) state.push_back(std::move(item));
  std::unordered_set<const void*> known;
  for (const auto& item : state) known.insert(item.second.storage().unsafeGetStorageImpl());
  for (const auto& item : captured.outside()) {
    if (known.count(item.second.storage().unsafeGetStorageImpl()) == 0) state.push_back(item);
  }
  return state;
}

// A copy on the tensor's device, or on the host if the device has no memory left: a model that just fits is compared
// too.
at::Tensor spare_copy(const at::Tensor& tensor) {
  try {
    return tensor.detach().clone();
  } catch (const c10::OutOfMemoryError&) {
    if (tensor.is_cpu()) throw;
    static std::once_flag warned;
    std::call_once(warned, [] {
      log_warning(
          "[GraphTrainer] too little device memory to compare a step on the device: it is compared on the host, which "
          "is slow. graph.verify_interval 0 switches the comparison off");
    });
    return tensor.detach().cpu();
  }
}

NamedTensors copy_of(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, spare_copy(tensor));
  return copies;
}

// Tensor by tensor, so that one copy of the state is enough for a comparison.
void swap_values(NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (same_bits(saved[i].second, live[i].second)) continue;
    const at::Tensor now = spare_copy(live[i].second);
    live[i].second.detach().copy_(saved[i].second);
    saved[i].second = now;
  }
}

void restore(const NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    // What did not change needs no write, and an expanded buffer would refuse one.
    if (!same_bits(saved[i].second, live[i].second)) live[i].second.detach().copy_(saved[i].second);
  }
}

struct RandomStates {
  explicit RandomStates(CapturedStep& step) : standard(random_state()) {
    for (at::Generator& generator : step.generators()) own.push_back(generator.get_state());
  }
  void restore(CapturedStep& step) const {
    set_random_state(standard);
    for (std::size_t i = 0; i < own.size(); ++i) step.generators()[i].set_state(own[i]);
  }
  void append_to(NamedTensors& tensors) const {
    for (const auto& [name, tensor] : standard.tensors()) tensors.emplace_back("random state " + name, tensor);
    for (const at::Tensor& tensor : own) tensors.emplace_back("random state of the task's generator", tensor);
  }

  StateDict standard;
  std::vector<at::Tensor> own;
};

// The ranks with whom a step exchanges tensors that is run by the host; a device graph exchanges by itself, and there
// all ranks compare at the same step. Null: it does not.
Communicator* ranks_of(const TrainStep& step) {
  const bool exchanges = step.parameters().front().second.is_cpu() && !step.communicator().is_alone();
  return exchanges ? &step.communicator() : nullptr;
}

// One step, several times from one snapshot; only the first run exchanges tensors with the other ranks.
class Comparison {
 public:
  Comparison(CapturedStep& captured, TrainStep& step, const MicroBatches& micro_batches)
      : captured_(captured),
        step_(step),
        micro_batches_(micro_batches),
        live_(state_of(step, captured)),
        saved_(copy_of(live_)),
        random_before_(captured),
        ranks_(ranks_of(step)) {
    if (ranks_ != nullptr) ranks_->keep();
  }
  ~Comparison() {
    if (ranks_ != nullptr) ranks_->live();
  }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  // The replay, then the eager run, whose results stay in place.
  ParityResult compare(StepObserver& observer) {
    ParityResult result;
    run_replay(observer, result.difference);
    result.output = run_eager(observer);
    const bool gives_the_same = ranks_ == nullptr || ranks_->repeated_exactly();
    if (result.difference.empty() && !gives_the_same) result.difference = "what it gives to the other ranks";
    if (!result.difference.empty()) return result;
    result.difference = first_difference(saved_, live_);
    if (result.difference.empty()) result.difference = first_difference(replayed_, beside_state(result.output));
    return result;
  }

  // Once more from `start`, with the hooks between the kernels.
  StepResult run_again(const NamedTensors& start, bool replay, StepObserver& observer) {
    restore(start, live_);
    if (!replay) return run_eager(observer);
    begin_again();
    return captured_.replay(step_, micro_batches_, observer);
  }

  const NamedTensors& live() const { return live_; }

 private:
  // Leaves the state as it was and its own in saved_.
  void run_replay(StepObserver& observer, std::string& difference) {
    try {
      replayed_ = beside_state(captured_.replay(step_, micro_batches_, observer));
      swap_values(saved_, live_);
    } catch (const PeerError&) {
      throw;
    } catch (const std::exception& error) {
      difference = "an op that failed (" + first_line(error) + ")";
      restore(saved_, live_);
    }
  }

  void begin_again() {
    random_before_.restore(captured_);
    if (ranks_ != nullptr) ranks_->repeat();
  }

  StepResult run_eager(StepObserver& observer) {
    begin_again();
    step_.zero_grad();
    return step_.run(micro_batches_, observer);
  }

  NamedTensors beside_state(const StepResult& output) {
    NamedTensors tensors;
    const auto add = [&tensors](const std::string& name, const at::Tensor& tensor) {
      if (tensor.defined()) tensors.emplace_back(name, tensor.detach().clone());
    };
    add("loss", output.loss);
    add("grad_norm", output.grad_norm);
    for (const auto& [name, tensor] : output.log) add(name, tensor);
    RandomStates(captured_).append_to(tensors);
    return tensors;
  }

  CapturedStep& captured_;
  TrainStep& step_;
  const MicroBatches& micro_batches_;
  const NamedTensors live_;
  NamedTensors saved_;  // as it is now; after the replay, as that leaves it
  NamedTensors replayed_;
  RandomStates random_before_;
  Communicator* ranks_;
};

}  // namespace

ParityResult run_both_ways(CapturedStep& captured, TrainStep& step, const MicroBatches& micro_batches,
                           StepObserver& observer) {
  Comparison comparison(captured, step, micro_batches);
  const NamedTensors start = observer.splits() ? copy_of(comparison.live()) : NamedTensors();
  WithoutSplitPoints without_host_code(observer);
  ParityResult result = comparison.compare(without_host_code);
  if (observer.splits()) {  // compared without the hooks; now the step that counts, with them
    result.output = comparison.run_again(start, /*replay=*/result.difference.empty(), observer);
  }
  return result;
}

}  // namespace duet
