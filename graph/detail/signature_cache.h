#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "core/detail/step_executor.h"
#include "graph/detail/captured_step.h"
#include "graph/graph_options.h"
#include "graph/guards/check_schedule.h"
#include "graph/guards/written_memory.h"

namespace duet {

// What a captured step is for.
struct Signature {
  std::vector<int64_t> key;
  std::string inputs;  // for people: "image float32[64, 1, 28, 28], target int64[64]"
  CodeKind kind;
  int64_t plan_version = 0;         // TrainStep::plan_version at its first sight
  std::shared_ptr<int64_t> checks;  // of all signatures that differ in sizes alone (CheckSchedule)
};

// One signature and what became of it. Where its host code reads values back (ReadGuard), one recording stands for one
// set of values, and others of the same signature are variants of it.
// Its members are what report() says of it, and what decides whether it is captured.
struct SignatureEntry {
  enum class State { kSeen, kCaptured, kEager };

  SignatureEntry(const GraphOptions& options, const Signature& signature);
  // Forgets the captured step: the signature is as if it had been seen for the first time.
  void drop();
  // What its host code does now is to be recorded. False if it changes too often to pay for that. `changed`: the tensor
  // from outside that was another one.
  bool record_again(const std::optional<StepProgram::Place>& changed, bool too_often, int64_t eager_steps_before);
  // After give_up(): what changed at every step may have settled by then.
  void retry_later();
  bool may_retry() const { return state == State::kEager && report.eager_steps >= retry_at; }
  // Whether another recording would not cost more than those before it have saved.
  bool has_paid() const;
  bool reads_values() const { return step != nullptr && step->reads() != nullptr; }
  int64_t bytes() const { return step ? step->bytes() : 0; }
  // From here on it runs eager, whatever its host code reads.
  void give_up(std::string reason, bool has_variants);
  // The signature in the report, with what the captured step reads.
  void name_reads();

  Signature signature;
  State state = State::kSeen;
  std::unique_ptr<CapturedStep> step;
  int64_t retry_at = std::numeric_limits<int64_t>::max(), retries = 0;  // at so many eager steps
  int64_t differing_before_retry = 0;
  bool noticed = false;     // something that a step reads was let go of since this one was there
  int64_t eager_steps = 0;  // since it was new or was dropped
  VerifySchedule verify;
  CheckSchedule check;
  int64_t recordings = 0;
  std::vector<StepProgram::Place> changing;  // tensors from outside that are others from step to step
  int64_t differing_in_a_row = 0;            // steps whose host code did something else than recorded
  int64_t last_use = 0;
  SignatureReport report;  // without state and bytes, which SignatureCache::report adds
  int64_t returns = 0;     // how often the values that it reads came back after others
};

// Every signature seen, with its captured step if it has one. Captured steps stay within a byte budget: the least
// recently used goes first.
class SignatureCache {
 public:
  SignatureCache(const GraphOptions& options, bool on_gpu) : options_(options), on_gpu_(on_gpu) {}

  struct Choice {
    SignatureEntry* entry;
    std::string gives_up{};  // why the entry is to run eager from now on; empty: it is not
  };
  // The entry of the step that is about to run. By the values that its host code will read: a captured one that has
  // read the same, one that is to be captured, or the one that runs eager for all other values.
  Choice choose(const StepCode& step, const MicroBatches& micro_batches);
  // The one that was chosen last; null if there was none.
  SignatureEntry* latest() const { return latest_; }
  bool has_variants(const SignatureEntry& entry) const { return entries_.at(entry.signature.key).size() > 1; }

  // What a step writes to beside its own memory: from here on part of the key of batches that share it. Whether that
  // makes another one of the key of these.
  bool add_written(const WrittenMemory::Ranges& ranges, const MicroBatches& micro_batches);

  // Drops captured steps until they fit the budget; `newest` stays, whatever it takes.
  void evict(const SignatureEntry& newest);
  // Drops the steps that were captured with other host numbers than those of `step`.
  void drop_outdated(const StepCode& step);
  // How many steps more than usual come before a recording: some where there are many that are hardly replayed.
  int64_t further_eager_steps() const;
  // Has the next replay of every signature checked.
  void must_check();
  // The same where any of them has lost a tensor from outside (CapturedStep::lost_outside).
  void must_check_if_lost(bool may_be_hidden);
  const std::vector<SignatureEntry*>& entries() const { return order_; }

  // Whether the step, and the settings around it, are still those that the entry is for, whatever the micro-batches.
  bool is_present(const SignatureEntry& entry, const StepCode& step) const;

  // In order of first sight.
  std::vector<SignatureReport> report() const;

 private:
  using Key = std::vector<int64_t>;
  using Variants = std::vector<std::unique_ptr<SignatureEntry>>;  // of one signature, at least one

  Variants& find(const StepCode& step, const MicroBatches& micro_batches);
  Choice choose_by_reads(Variants& variants, const MicroBatches& micro_batches);
  Choice give_up(Variants& variants);
  std::shared_ptr<int64_t> checks_of(const StepCode& step, const MicroBatches& micro_batches);
  SignatureEntry& add(Variants& variants, const Signature& signature);
  void merge_variants(Variants& variants, SignatureEntry& heir);
  template <class IsOutdated>
  void drop_if(IsOutdated is_outdated) {
    for (SignatureEntry* entry : order_) {
      if (entry->state == SignatureEntry::State::kCaptured && is_outdated(*entry)) entry->drop();
    }
  }
  void warn_of_changing_keys() const;
  void forget_oldest();
  int64_t bytes() const;

  GraphOptions options_;
  bool on_gpu_;
  WrittenMemory written_;
  std::map<Key, Variants> entries_;
  std::vector<SignatureEntry*> order_;  // of first sight
  Variants* found_ = nullptr;           // by the latest find()
  SignatureEntry* latest_ = nullptr;
  Key key_;  // of the current step; kept to reuse its memory
  Key latest_key_;
  std::map<Key, std::weak_ptr<int64_t>> checks_;  // by key without sizes
  int64_t new_in_a_row_ = 0;
  bool warned_of_budget_ = false;
};

}  // namespace duet
