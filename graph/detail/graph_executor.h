#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>
#include "core/detail/step_executor.h"
#include "graph/detail/capture_method.h"
#include "graph/detail/signature_cache.h"
#include "graph/guards/storage_watch.h"

namespace duet {

struct ParityResult;

// What BaseTrainer makes its executor of graph mode with. Checks the options when it is called.
StepExecutors::MakeGraph graph_executor_with(const GraphOptions& options);

// Runs a StepCode in graph mode: eager at the first sight of a signature, recorded at the next, replayed from then on,
// and compared with an eager run where the guards ask for it.
// It is all that a trainer sees of graph mode: its many members are that interface, and what its captures share.
class GraphExecutor : public StepExecutor {
 public:
  // Throws ConfigError for a step that no capture can hold, unless nothing is to be captured.
  GraphExecutor(StepCode& step, at::Device device, const GraphOptions& options);
  GraphExecutor(StepCode& step, CaptureMethod method, const GraphOptions& options);

  StepPlan choose(const MicroBatches& micro_batches, const StepObserver& observer) override;
  StepResult run(const StepPlan& plan, const MicroBatches& micro_batches, StepObserver& observer) override;
  void on_stream(const std::function<void()>& work) override {
    method_.device == nullptr ? work() : method_.device->on_stream(work);
  }
  // Device graphs hold collectives. On the CPU every path calls the same.
  bool ranks_need_same_path() const override { return method_.device != nullptr; }
  void settle(StepObserver& observer) override;
  void state_replaced() override { cache_.drop_outdated(step_); }
  StepExplanation explain(TrainStep& step, const MicroBatches& micro_batches, StepObserver& observer) override;

  UncheckedSteps unchecked() const override;
  std::vector<SignatureReport> report() const { return cache_.report(); }
  int64_t eager_steps() const { return eager_steps_; }
  int64_t replays() const { return replays_; }
  // The captured step of the latest signature as text; empty if it was not captured.
  std::string program_text() const;

 private:
  bool check_addresses();
  void try_kernels(SignatureEntry& entry, const StepObserver& observer);
  SignatureEntry& entry_for(const MicroBatches& micro_batches);
  StepResult execute(const StepPlan& plan, const MicroBatches& micro_batches, StepObserver& observer);
  StepResult run_eager(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer);
  StepResult run_again(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer);
  StepResult record(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer);
  StepResult capture(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer);
  StepResult replay(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer);
  StepResult replay_and_compare(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer);
  StepResult check_and_replay(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer);
  void note_unchecked(SignatureEntry& entry);
  void note_same(SignatureEntry& entry, double seconds, double replay_seconds);
  void note_difference(SignatureEntry& entry);
  void note_other_host_code(SignatureEntry& entry);
  void note_replaced_gradient(SignatureEntry& entry, const std::string& parameter);
  void note_differing_replay(SignatureEntry& entry, const ParityResult& result);
  void note_unstable_kernels(SignatureEntry& entry, const ParityResult& result);
  void note_kernel_fault(SignatureEntry& entry, const ParityResult& result);
  void fall_back(SignatureEntry& entry, std::string reason);
  void fall_back_unless_strict(SignatureEntry& entry, const std::string& reason);
  void throw_if_unchecked(const SignatureEntry& entry, int64_t unchecked) const;
  void throw_if_doubtful(const SignatureEntry& entry, int64_t doubtful, int64_t since) const;
  [[noreturn]] void throw_doubt(const std::string& what, int64_t doubtful, int64_t since) const;
  bool is_as_it_ran(const SignatureEntry& entry, const StepObserver& observer);
  std::string who(const SignatureEntry& entry) const;
  void count_eager(SignatureEntry& entry) {
    ++entry.report.eager_steps;
    ++eager_steps_;
  }
  void count_replay(SignatureEntry& entry) {
    ++entry.report.replays;
    ++replays_;
  }

  StepCode& step_;
  CaptureMethod method_;  // its device outlives the steps in the cache
  Fallback fallback_;
  int64_t fuse_after_;
  SignatureCache cache_;
  bool noticed_ = false;                  // what the next step is to look into
  int64_t captures_seen_ = 0;             // of those in this process
  std::unordered_set<std::string> told_;  // reasons why steps run eager; one warning for each
  StorageWatch storages_;                 // of the tensors that captured steps read and write
  int64_t steps_ = 0;
  int64_t steps_done_ = 0;  // StepObserver's, before the step that runs
  int64_t settled_ = 0;     // of `steps_`, by the last settle()
  UncheckedSteps unchecked_;
  int64_t eager_steps_ = 0;
  int64_t replays_ = 0;
};

}  // namespace duet
