#pragma once

#include "core/train_step.h"
#include "graph/guards/address_ledger.h"
#include "graph/detail/capture_method.h"
#include "graph/graph_options.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace duet {

// Runs steps: eager at the first sight of a signature, captured at the next, replayed from then on. Knows every
// signature seen, keeps captured steps within a byte budget, and decides when a replay may not be trusted.
class StepCache {
 public:
  StepCache(CaptureMethod method, const GraphOptions& options) : method_(std::move(method)), options_(options) {}

  StepResult run(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);
  // Likewise, op by op whatever was captured.
  StepResult run_eager(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);
  // What run() would do now: 1 run op by op, 2 capture, 3 replay, 4 replay and compare.
  double plan(TrainStep& rule, const MicroBatches& micro_batches, const StepObserver& points);

  // After the rule's host numbers were replaced: lets go of the steps that were captured with others.
  void drop_outdated(const TrainStep& rule);

  std::vector<SignatureReport> report() const;
  int64_t eager_steps() const { return eager_steps_; }
  int64_t replays() const { return replays_; }
  std::string program_text(const NamedTensors& names) const;

 private:
  enum class State { kSeen, kCaptured, kEager };
  struct Entry {
    SignatureReport report;
    State state = State::kSeen;
    std::unique_ptr<CapturedStep> step;
    int64_t sights = 0;             // eager steps since it was new or was dropped
    int64_t unverified = 0;         // replays since the last comparison
    int64_t next_verification = 1;  // replays until the next one
    bool must_verify = false;           // something was noticed: the next replay is compared, those before it were fine
    int64_t last_use = 0;
  };
  using Key = std::vector<int64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };

  StepResult run_one(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);
  void warn_of_changing_keys();
  void forget_old_sights();
  Entry& find(TrainStep& rule, const MicroBatches& micro_batches);
  void watch_addresses();
  StepResult run_eager(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);
  StepResult capture(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);
  StepResult replay(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);
  StepResult verify(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);
  void fall_back(Entry& entry, std::string reason);
  void drop(Entry& entry);
  void evict(const Entry& newest);

  CaptureMethod method_;  // its device outlives the steps below
  GraphOptions options_;
  std::unordered_map<Key, std::unique_ptr<Entry>, KeyHash> entries_;
  std::vector<Entry*> order_;  // of first sight
  Entry* latest_ = nullptr;
  Key key_;                    // of the current step; kept to reuse its memory
  Key latest_key_;
  AddressLedger ledger_;
  bool ledger_written_ = false;
  int64_t new_in_a_row_ = 0;
  bool warned_of_budget_ = false;
  int64_t steps_ = 0;
  int64_t eager_steps_ = 0;
  int64_t replays_ = 0;
};

}  // namespace duet
