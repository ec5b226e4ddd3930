#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "core/detail/step_executor.h"
#include "graph/detail/replayed_step.h"
#include "graph/guards/read_guard.h"
#include "graph/guards/recorded_ops.h"
#include "graph/guards/storage_watch.h"
#include "graph/guards/trace_check.h"
#include "graph/guards/written_memory.h"
#include "graph/record/obstacle.h"
#include "graph/record/step_program.h"

namespace duet {

// The tensors that the code reads and changes, those from outside left out.
NamedTensors all_tensors_of(const StepCode& step);

struct RecordOptions {
  bool strict = false;  // what cannot be replayed throws GraphError, before the step has changed anything
  // What earlier recordings of the step have found to be another tensor from step to step.
  std::vector<StepProgram::Place> changing{};
  ObstacleListener listener{};  // hears of every obstacle, not only the first
};

// One step captured for one signature: recorded, replayed, and its host code compared with the recording.
// The three need the same inputs, results and guards, so they are one class.
class CapturedStep {
 public:
  CapturedStep(const MicroBatches& example, std::unique_ptr<SegmentReplay> segments)
      : replayed_(example, std::move(segments)) {}

  // Runs one real step op by op and records it. If it cannot be replayed, failure() says why afterwards.
  StepResult record(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                    const RecordOptions& options);
  const std::string& failure() const { return failure_; }
  // Whether the obstacle was a hook, which may leave the step alone another time.
  bool may_succeed_later() const { return may_succeed_later_; }
  // What the recorded step writes beside its own memory.
  const WrittenMemory::Ranges& written() const { return written_; }
  // What was recorded: once failure() is empty.
  const StepProgram& recording() const { return *recording_; }
  // Whether the captured hooks are the present ones.
  bool fits(const StepObserver& observer) const {
    return splits_ == observer.splits() && version_ == observer.version();
  }

  // The replay alone, and what it takes and is made of.
  const ReplayedStep& replayed() const { return replayed_; }
  SegmentReplay& segments() { return replayed_.segments(); }
  int64_t bytes() const;
  // On the CPU: gives memory back to the system that holds nothing until the next replay.
  void return_memory();
  // Runs one step on `micro_batches`, which has the layout of the captured one.
  StepResult replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);

  // Runs the host code of one step and compares it with the recording (TraceCheck), then replays it. Where the two
  // differ the step runs op by op instead.
  struct Checked {
    TraceCheck::Outcome outcome;
    StepResult output;  // unless kUnreadable
    double replay_seconds = 0;
  };
  Checked check_and_replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);
  // Has the device capture one step, whose host code runs once and is compared with the recording, and replays that. If
  // the two differ the capture is forgotten afterwards. Nothing if the device refuses: failure() says why, and the host
  // code has run, but no op.
  std::optional<Checked> capture_and_replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);
  // Runs one step op by op. False if its host code does something else than recorded.
  bool run_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer, StepResult& output);
  // A replay of that step, on the tensors from outside that its host code has named as they were before it.
  StepResult replay_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer);
  // Then: whether the two have made the same of these.
  bool same_outside() const { return check_->memory().bound_are_same(memory()); }
  // The host code of the step that ran last, once more and without a step.
  bool still_same(StepCode& step, StepObserver& observer);
  // Runs the recorded ops without host code (recorded_ops.h), on micro-batches as in replay().
  OpHashes run_by_op(const MicroBatches& micro_batches);
  UnstableOps unstable_ops(const std::vector<OpHashes>& runs) const { return {recording_, runs}; }

  // What the last comparison of the host code has found.
  const TraceCheck& check() const { return *check_; }
  // Whether its host code was found to be the recorded one, at least once.
  bool was_checked() const { return was_checked_; }
  // Whether somebody keeps tensors of the step, gives it others each time, or fills one by its address: then each
  // replay needs the host code.
  bool needs_host_code() const;
  // Tells before a step whether the values that its host code reads are the recorded ones; null: it reads none. A
  // replay is right only where they are.
  ReadGuard* reads() { return reads_.get(); }
  // Whether somebody let go of a tensor from outside that it reads since the last call, or gave it other memory: the
  // user's code may have another one now.
  bool lost_outside(bool may_be_hidden = false) {
    const auto [moved, references_lost] = outside_.look(may_be_hidden);
    return references_lost || !moved.empty();
  }

 private:
  void trust(const std::shared_ptr<StepProgram>& program, StepCode& step, const StepResult& recorded);
  TraceCheck::HostCode host_code(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                 StepResult& output);
  TraceCheck::Outcome check_host_code(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                      StepResult& output);
  void run_checked_segment(std::size_t segment);
  StepMemory::MemoryOf memory() const {
    return [this](int storage) { return replayed_.segments().memory_of(storage); };
  }

  ReplayedStep replayed_;
  std::shared_ptr<const StepProgram> recording_;
  std::unique_ptr<TraceCheck> check_;
  std::unique_ptr<ReadGuard> reads_;
  StorageWatch outside_;  // the tensors of which the trainer does not know
  WrittenMemory::Ranges written_;
  std::string failure_;
  std::size_t next_segment_ = 0;  // while the host code is checked
  int64_t version_ = 0;
  bool splits_ = false;
  bool may_succeed_later_ = false;
  bool was_checked_ = false;
  bool fills_by_address_ = false;
  bool keeps_batch_ = false;  // somebody keeps tensors of it that no op reads
};

}  // namespace duet
