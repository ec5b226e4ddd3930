#include "graph/guards/parity_guard.h"
#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "distributed/communicator.h"
#include "graph/replay/cpu_program.h"

namespace duet {

namespace {

// Calls `at_first` before the first hooks between the kernels of a step. The hooks themselves, host code that must not
// run twice in one step, are called or not; in-step code belongs to both runs.
class FirstSplit : public StepObserver {
 public:
  enum class Hooks { kCalled, kLeftOut };
  FirstSplit(StepObserver& inner, Hooks hooks, std::function<void(const StepView&)> at_first)
      : inner_(inner), hooks_(hooks), at_first_(std::move(at_first)) {}

  bool splits() const override { return inner_.splits(); }
  bool wants_outputs() const override { return inner_.wants_outputs(); }
  void after_backward(const StepView& view) override {
    reach(view);
    if (hooks_ == Hooks::kCalled) inner_.after_backward(view);
  }
  void before_optimizer_step(const StepView& view) override {
    reach(view);
    if (hooks_ == Hooks::kCalled) inner_.before_optimizer_step(view);
  }
  void in_step(StepView& view) override { inner_.in_step(view); }

 private:
  void reach(const StepView& view) {
    if (at_first_) std::exchange(at_first_, nullptr)(view);
  }

  StepObserver& inner_;
  Hooks hooks_;
  std::function<void(const StepView&)> at_first_;
};

// Memory that several tensors share is there once, whole.
void add_state(NamedTensors& state, std::unordered_map<const void*, std::size_t>& known,
               const std::pair<std::string, at::Tensor>& item) {
  const c10::Storage& memory = item.second.storage();
  const auto [found, is_new] = known.try_emplace(memory.unsafeGetStorageImpl(), state.size());
  if (is_new) {
    state.push_back(item);
  } else {
    state[found->second].second =
        tensor_at(memory, {0, 0, {static_cast<int64_t>(memory.nbytes())}, {1}, at::kByte, {}});
  }
}

NamedTensors state_of(const StepCode& step, const CapturedStep& captured) {
  NamedTensors state;
  std::unordered_map<const void*, std::size_t> known;
  for (const auto& item : step.parameters()) add_state(state, known, item);
  for (const auto& item : step.mutable_state()) add_state(state, known, item);
  for (const auto& item : captured.outside()) {
    if (known.count(item.second.storage().unsafeGetStorageImpl()) == 0) add_state(state, known, item);
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
Communicator* ranks_of(const StepCode& step) {
  const bool exchanges = !step.communicator().is_alone() && step.parameters().front().second.is_cpu();
  return exchanges ? &step.communicator() : nullptr;
}

// One step, several times from one snapshot; only the first run exchanges tensors with the other ranks.
class Comparison {
 public:
  Comparison(CapturedStep& captured, StepCode& step, const MicroBatches& micro_batches)
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

  // The replay, then the eager run, whose results stay in place. Where hooks act between the kernels only the eager run
  // calls them, and what is compared is the state before the first one.
  ParityResult compare(StepObserver& observer) {
    ParityResult result;
    NamedTensors at_split;
    FirstSplit without_hooks(observer, FirstSplit::Hooks::kLeftOut,
                             [&](const StepView& view) { at_split = copy_of(all_at(view)); });
    run_replay(without_hooks, result.difference);
    if (may_blame_kernels()) before_ = copy_of(live_);
    FirstSplit with_hooks(observer, FirstSplit::Hooks::kCalled, [&](const StepView& view) {
      if (may_blame_kernels()) expected_ = copy_of(all_at(view));
      if (result.difference.empty()) result.difference = first_difference(at_split, all_at(view));
    });
    begin_again();
    step_.zero_grad();
    try {
      result.same_host_code = captured_.run_followed(step_, micro_batches_, with_hooks, result.output);
    } catch (const c10::OutOfMemoryError&) {
      // The other ranks wait in the sums of this step's eager run.
      if (!result.difference.empty() || observer.splits() || !step_.communicator().is_alone()) throw;
      keep_replay(result);
      return result;
    }
    gradients_.clear();  // a replay would copy them for whoever keeps them
    const bool gives_the_same = ranks_ == nullptr || ranks_->repeated_exactly();
    if (result.difference.empty() && !gives_the_same) result.difference = "what it gives to the other ranks";
    if (result.difference.empty() && !observer.splits()) {
      result.difference = first_difference(saved_, live_);
      if (result.difference.empty()) result.difference = first_difference(replayed_, beside_state(result.output));
    }
    if (!result.difference.empty() && result.same_host_code && may_blame_kernels()) blame_kernels(observer, result);
    return result;
  }

 private:
  // With other ranks the sums would have to be those of the first run at each time.
  bool may_blame_kernels() const {
    return ranks_ == nullptr && captured_.cpu_program() != nullptr && captured_.cpu_program()->kernel_count() > 0;
  }

  // The first kernel with which a replay differs from the eager run, whose results stay in place.
  void blame_kernels(StepObserver& observer, ParityResult& result) {
    const RandomStates random_after(captured_);
    const NamedTensors after = copy_of(live_);
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : step_.parameters()) gradients.push_back(parameter.second.grad());
    if (!observer.splits()) {
      expected_ = after;
      for (auto& item : beside_state(result.output)) expected_.push_back(std::move(item));
    }
    CpuProgram& program = *captured_.cpu_program();
    const int64_t all = program.kernel_count();
    // What does not come again may have had another cause.
    if (agrees_with(0, observer) && !agrees_with(all, observer)) name_fault(first_fault(all, observer), result);
    program.use_kernels(all);
    restore(after, live_);
    random_after.restore(captured_);
    for (std::size_t i = 0; i < gradients.size(); ++i) step_.parameters()[i].second.mutable_grad() = gradients[i];
  }

  int64_t first_fault(int64_t all, StepObserver& observer) {
    int64_t right = 0, wrong = all;  // with so many kernels
    while (wrong - right > 1) {
      const int64_t middle = right + (wrong - right) / 2;
      (agrees_with(middle, observer) ? right : wrong) = middle;
    }
    return wrong - 1;
  }

  void name_fault(int64_t kernel, ParityResult& result) {
    const CpuProgram& program = *captured_.cpu_program();
    result.kernel = program.kernel_text(kernel);
    if (const KernelPass* pass = program.kernel_pass(kernel)) result.passes.push_back(pass);
  }

  // Whether a replay with the first `kernels` of duet's own gives what the eager run gave.
  bool agrees_with(int64_t kernels, StepObserver& observer) {
    restore(before_, live_);
    random_before_.restore(captured_);
    captured_.cpu_program()->use_kernels(kernels);
    NamedTensors given;
    FirstSplit without_hooks(observer, FirstSplit::Hooks::kLeftOut,
                             [&](const StepView& view) { given = copy_of(all_at(view)); });
    try {
      const StepResult output = captured_.replay(step_, micro_batches_, without_hooks);
      if (!observer.splits()) {
        given = live_;
        for (auto& item : beside_state(output)) given.push_back(std::move(item));
      }
    } catch (const std::exception&) {
      return false;
    }
    return first_difference(given, expected_).empty();
  }

  // The state in the middle of a step, with its gradients.
  NamedTensors all_at(const StepView& view) const {
    NamedTensors tensors = live_;
    if (view.output.loss.defined()) tensors.emplace_back("loss", view.output.loss);
    for (const auto& [name, parameter] : view.parameters) {
      if (parameter.grad().defined()) tensors.emplace_back("the gradient of " + name, parameter.grad());
    }
    return tensors;
  }

  // Leaves the state as it was and its own in saved_.
  void run_replay(StepObserver& observer, std::string& difference) {
    try {
      replay_ = captured_.replay(step_, micro_batches_, observer);
      replayed_ = beside_state(replay_);
      random_after_.emplace(captured_);
      for (const auto& parameter : step_.parameters()) gradients_.push_back(parameter.second.grad());
      swap_values(saved_, live_);
    } catch (const PeerError&) {
      throw;
    } catch (const std::exception& error) {
      difference = "an op that failed (" + first_line(error) + ")";
      restore(saved_, live_);
    }
  }

  // The step is the replay, as if nothing had been compared.
  void keep_replay(ParityResult& result) {
    restore(saved_, live_);
    random_after_->restore(captured_);
    for (std::size_t i = 0; i < gradients_.size(); ++i) step_.parameters()[i].second.mutable_grad() = gradients_[i];
    result.output = replay_;
    result.short_of_memory = true;
    static std::once_flag warned;
    std::call_once(warned, [] {
      log_warning(
          "[GraphTrainer] too little memory to run a replayed step op by op as well: it is not compared. "
          "graph.verify_interval 0 switches comparisons off");
    });
  }

  void begin_again() {
    random_before_.restore(captured_);
    if (ranks_ != nullptr) ranks_->repeat();
  }

  NamedTensors beside_state(const StepResult& output) {
    NamedTensors tensors = output.all();
    for (auto& item : tensors) item.second = item.second.detach().clone();
    // A step without random ops leaves the generators alone: if one has moved, another thread has drawn from it.
    if (captured_.draws()) RandomStates(captured_).append_to(tensors);
    return tensors;
  }

  CapturedStep& captured_;
  StepCode& step_;
  const MicroBatches& micro_batches_;
  const NamedTensors live_;
  NamedTensors saved_;  // as it is now; after the replay, as that leaves it
  NamedTensors replayed_;
  NamedTensors before_, expected_;  // for blame_kernels(): the state as it was, and what the eager run gave
  RandomStates random_before_;
  StepResult replay_;  // and what it left beside the state
  std::optional<RandomStates> random_after_;
  std::vector<at::Tensor> gradients_;
  Communicator* ranks_;
};

}  // namespace

ParityResult run_both_ways(CapturedStep& captured, StepCode& step, const MicroBatches& micro_batches,
                           StepObserver& observer) {
  return Comparison(captured, step, micro_batches).compare(observer);
}

}  // namespace duet
