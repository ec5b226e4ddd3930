#include "graph/guards/parity_guard.h"
#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "distributed/communicator.h"
#include "graph/guards/state_copies.h"
#include "graph/guards/storage_watch.h"
#include "graph/record/at_splits.h"
#include "graph/replay/cpu_program.h"

namespace duet {

namespace {

constexpr const char* kToRanks = "what it gives to the other ranks";

// The ranks with whom a step exchanges tensors that is run by the host; a device graph exchanges by itself, and there
// all ranks compare at the same step. Null: it does not.
Communicator* ranks_of(const StepCode& step) {
  const bool exchanges = !step.communicator().is_single() && step.parameters().front().second.is_cpu();
  return exchanges ? &step.communicator() : nullptr;
}

// The first parameter whose gradient the hooks replace or remove: a replay would end op by op. Empty: none.
std::string replaced_by(const std::function<void()>& hooks, const NamedTensors& parameters) {
  NamedTensors before;
  for (const auto& [name, parameter] : parameters) before.emplace_back(name, parameter.grad());
  StorageWatch places;
  places.write(before);
  hooks();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!parameters[i].second.grad().is_same(before[i].second)) return before[i].first;
  }
  return places.moved();
}

void add_gradients(NamedTensors& tensors, const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) tensors.emplace_back("the gradient of " + name, parameter.grad());
  }
}

// Whether the host has the memory for the copies: of the state, where hooks act once more, and a second set of
// gradients. It would end the process rather than throw, as devices do.
bool fits(const NamedTensors& state, const NamedTensors& parameters, bool hooks_act) {
  if (!parameters.empty() && !parameters.front().second.is_cpu()) return true;
  const auto bytes_of_all = [](const NamedTensors& tensors) {
    int64_t bytes = 0;
    for (const auto& item : tensors) bytes += static_cast<int64_t>(item.second.nbytes());
    return bytes;
  };
  const int64_t copies = hooks_act ? 2 : 1;
  return copies * (bytes_of_all(state) + bytes_of_all(parameters)) <= free_bytes(at::kCPU);
}

// One step, several times from one snapshot; only the first run exchanges tensors with the other ranks.
class Comparison {
 public:
  Comparison(CapturedStep& captured, StepCode& step, const MicroBatches& micro_batches, bool hooks_act)
      : captured_(captured),
        step_(step),
        micro_batches_(micro_batches),
        live_(state_of(step, captured.recording(), hooks_act)),
        fits_(fits(live_, step.parameters(), hooks_act)),
        saved_(fits_ ? copy_of(live_) : NamedTensors{}),
        random_before_(captured.recording().generators()),
        ranks_(ranks_of(step)) {
    if (ranks_ != nullptr) ranks_->record_collectives();
  }
  ~Comparison() {
    if (ranks_ != nullptr) ranks_->resume_collectives();
  }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  // The eager run, whose results stay in place, then the replay, which may be of tensors that only the host code of
  // this step names. Where hooks act between the kernels only the eager run calls them, and what is compared is the
  // state before the first one.
  ParityResult compare(StepObserver& observer) {
    ParityResult result;
    const bool may_replay = !captured_.recording().reads_changing_tensors();
    if (!fits_ && may_replay) return replay_alone(observer);
    bool is_first = true;
    AtSplits with_hooks(observer, [&](SplitPoint, const StepView& view, const auto& hooks) {
      if (std::exchange(is_first, false) && fits_) expected_ = copy_of(all_at(view));
      const std::string replaced = replaced_by(hooks, view.parameters);
      if (result.replaced_gradient.empty()) result.replaced_gradient = replaced;
    });
    step_.zero_grad();
    try {
      result.same_host_code = captured_.run_followed(step_, micro_batches_, with_hooks, result.output);
    } catch (const c10::OutOfMemoryError&) {
      // Hooks may have acted, and the other ranks wait in the sums of this run.
      if (!may_replay || observer.splits() || !step_.communicator().is_single()) throw;
      return replay_alone(observer);
    }
    if (!fits_) note_short_memory(result);
    result.compared = !on_any_rank(!fits_ || !result.same_host_code || !result.replaced_gradient.empty());
    if (!result.compared) return result;
    replay(observer, result);
    const bool differs = !result.differing.empty();
    if (on_any_rank(differs)) check_determinism(result);
    if (differs && result.unstable_op.empty() && may_blame_kernels()) bisect_kernels(observer, result);
    return result;
  }

 private:
  void replay(StepObserver& observer, ParityResult& result) {
    captured_.return_memory();
    const NamedTensors eager = beside_state(result.output);
    swap_values(saved_, live_);
    if (!observer.splits()) {
      expected_ = saved_;
      expected_.insert(expected_.end(), eager.begin(), eager.end());
    }
    const auto compared = [&] {
      try {
        result.differing = differences_of_replay(observer);
        if (!observer.splits() && !captured_.same_outside()) {
          result.differing.emplace_back(StepProgram::kOutside);
        }
      } catch (const PeerError&) {
        throw;
      } catch (const c10::OutOfMemoryError&) {
        if (!step_.communicator().is_single()) throw;  // the other ranks wait in the sums of this replay
        note_short_memory(result);
      } catch (const std::exception& error) {
        result.replay_error = first_line(error);
        result.differing = {"all that its replay gives"};
      }
    };
    put_back_after(compared);
  }

  // The names of what a replay gives otherwise than expected.
  std::vector<std::string> differences_of_replay(StepObserver& observer) {
    if (ranks_ != nullptr) ranks_->replay_collectives();
    std::vector<std::string> names;
    replay_to(observer, [&](const NamedTensors& given) { names = differences(given, expected_); });
    if (ranks_ != nullptr && !ranks_->repeated_exactly()) names.insert(names.begin(), kToRanks);
    return names;
  }

  // `see` gets what a replay gives from the state that is in place. Where hooks act between the kernels that is the
  // state before the first one, and they, which must not run twice in one step, are left out.
  template <class See>
  void replay_to(StepObserver& observer, const See& see) {
    random_before_.restore();
    bool is_first = true;
    AtSplits without_hooks(observer, [&](SplitPoint, const StepView& view, const auto&) {
      if (std::exchange(is_first, false)) see(all_at(view));
    });
    const StepResult output = captured_.replay_followed(step_, micro_batches_, without_hooks);
    if (observer.splits()) return;
    NamedTensors given = live_;
    for (auto& item : beside_state(output)) given.push_back(std::move(item));
    see(given);
  }

  // The step is the replay, as if nothing had been compared.
  ParityResult replay_alone(StepObserver& observer) {
    ParityResult result;
    captured_.return_memory();
    restore(saved_, live_);
    random_before_.restore();
    step_.zero_grad();
    result.output = captured_.replay(step_, micro_batches_, observer);
    result.replayed = true;
    note_short_memory(result);
    return result;
  }

  static void note_short_memory(ParityResult& result) {
    result.compared = false;
    static std::once_flag warned;
    std::call_once(warned, [] {
      log_warning(
          "[GraphTrainer] too little memory to run a replayed step op by op as well: it is not compared. "
          "graph.verify_interval 0 switches comparisons off");
    });
  }

  // With other ranks the sums would have to be those of the first run at each time.
  bool may_blame_kernels() const {
    return ranks_ == nullptr && captured_.segments().cpu_program() != nullptr &&
           captured_.segments().cpu_program()->kernel_count() > 0;
  }

  // Whether it is so here, or on a rank that compares this step as well.
  bool on_any_rank(bool here) const {
    if (ranks_ != nullptr || step_.communicator().is_single()) return here;
    const std::vector<int32_t> all = step_.communicator().gather(static_cast<int32_t>(here));
    return std::find(all.begin(), all.end(), 1) != all.end();
  }

  // Runs `work`, which may change everything, and puts back what the eager run has left, as it lies in `saved_` then.
  template <class Work>
  void put_back_after(const Work& work) {
    const RandomStates random(captured_.recording().generators());
    const Gradients gradients(step_.parameters());
    const std::exception_ptr error = caught(work);
    restore(saved_, live_);
    random.restore();
    gradients.put_back(step_.parameters());
    if (error) std::rethrow_exception(error);
  }

  // Do the tensors that differ follow from ops that give other bits when they run several times from one state, which
  // add up in no fixed order (atomics)? Then the replay is as right as the eager run. Ranks whose graphs exchange all
  // run along, since these ops exchange as well.
  void check_determinism(ParityResult& result) {
    constexpr int kRuns = 3;
    std::vector<OpHashes> runs;
    try {
      const RandomStates random(captured_.recording().generators());
      const auto run_them = [&] {
        while (runs.size() < kRuns) {
          restore(saved_, live_);
          random.restore();
          if (ranks_ != nullptr) ranks_->replay_collectives();
          runs.push_back(captured_.run_by_op(micro_batches_));
        }
      };
      put_back_after(run_them);
    } catch (const c10::OutOfMemoryError&) {
      if (!step_.communicator().is_single()) throw;
      return;
    }
    const UnstableOps unstable = captured_.unstable_ops(runs);
    const std::unordered_set<std::string> names = names_of(unstable, result.output);
    const bool explained =
        std::ranges::all_of(result.differing, [&](const auto& name) { return names.contains(name); });
    if (!on_any_rank(!explained)) result.unstable_op = unstable.first();
  }

  // Of the tensors that they reach.
  std::unordered_set<std::string> names_of(const UnstableOps& unstable, const StepResult& output) const {
    std::unordered_set<std::string> names;
    if (unstable.reach_other_ranks()) names.insert(kToRanks);
    for (const auto& [name, tensor] : live_) {
      if (unstable.reach(tensor)) names.insert(name);
    }
    std::size_t result = 0;
    const auto see = [&](const std::string& name) {
      if (unstable.reach_result(result++)) names.insert(name);
    };
    for (const auto& item : output.all()) see(item.first);
    for (const auto& [name, parameter] : step_.parameters()) {
      if (parameter.grad().defined()) see("the gradient of " + name);
    }
    return names;
  }

  // The first kernel with which a replay differs from one that has none of them. They start from what the eager run has
  // left, since keeping the state before it as well would cost each comparison that much memory.
  void bisect_kernels(StepObserver& observer, ParityResult& result) {
    put_back_after([&] {
      CpuProgram& program = *captured_.segments().cpu_program();
      const int64_t all = program.kernel_count();
      const bool runs = replay_with(0, observer, [&](const NamedTensors& given) { expected_ = copy_of(given); });
      // What does not come again may have had another cause.
      if (runs && agrees_with(0, observer) && !agrees_with(all, observer)) {
        const int64_t kernel = first_fault(all, observer);
        result.kernel = program.kernel_text(kernel);
        result.pass = program.kernel_pass(kernel);
      }
      program.use_kernels(all);
    });
  }

  int64_t first_fault(int64_t all, StepObserver& observer) {
    int64_t right = 0, wrong = all;  // with so many kernels
    while (wrong - right > 1) {
      const int64_t middle = right + (wrong - right) / 2;
      (agrees_with(middle, observer) ? right : wrong) = middle;
    }
    return wrong - 1;
  }

  // Whether a replay with the first `kernels` of duet's own gives what one without them gave.
  bool agrees_with(int64_t kernels, StepObserver& observer) {
    bool same = false;
    replay_with(kernels, observer, [&](const NamedTensors& given) { same = differences(given, expected_).empty(); });
    return same;
  }

  // Whether it did not fail. Gradients are seen, too: they show faults that are lost in a small step of the weights.
  template <class See>
  bool replay_with(int64_t kernels, StepObserver& observer, const See& see) {
    restore(saved_, live_);
    captured_.segments().cpu_program()->use_kernels(kernels);
    try {
      replay_to(observer, [&](NamedTensors given) {
        add_gradients(given, step_.parameters());
        see(given);
      });
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  // The state in the middle of a step, with its gradients.
  NamedTensors all_at(const StepView& view) const {
    NamedTensors tensors = live_;
    if (view.output.loss.defined()) tensors.emplace_back("loss", view.output.loss);
    add_gradients(tensors, view.parameters);
    return tensors;
  }

  NamedTensors beside_state(const StepResult& output) {
    NamedTensors tensors = output.all();
    for (auto& item : tensors) item.second = item.second.detach().clone();
    // A step without random ops leaves the generators alone: if one has moved, another thread has drawn from it.
    if (captured_.recording().draws()) RandomStates(captured_.recording().generators()).append_to(tensors);
    return tensors;
  }

  CapturedStep& captured_;
  StepCode& step_;
  const MicroBatches& micro_batches_;
  const NamedTensors live_;
  const bool fits_;
  NamedTensors saved_;     // as it was; from the replay on, as the eager run has left it
  NamedTensors expected_;  // what the eager run gave; in bisect_kernels(): a replay without kernels
  RandomStates random_before_;
  Communicator* ranks_;
};

}  // namespace

ParityResult run_both_ways(CapturedStep& captured, StepCode& step, const MicroBatches& micro_batches,
                           StepObserver& observer) {
  // The two runs take turns in memory.
  captured.return_memory();
  const auto afterwards = c10::make_scope_exit([&captured] { captured.return_memory(); });
  return Comparison(captured, step, micro_batches, observer.splits()).compare(observer);
}

}  // namespace duet
