#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>
#include "core/detail/step_executor.h"
#include "graph/detail/captured_step.h"
#include "graph/graph_options.h"
#include "graph/guards/check_schedule.h"
#include "graph/guards/written_memory.h"

namespace duet {

// When a replay is compared with an eager run: after 1, 2, 4, ... replays and then every `interval` ones on average (0:
// never), and at once where something was noticed.
class VerifySchedule {
 public:
  explicit VerifySchedule(int64_t interval) : interval_(interval) { restart(); }

  // The step was captured just now.
  void restart() {
    unverified_ = 0;
    growing_ = 1;
    next_ = interval_ > 0 ? 2 : kNever;  // the first one shows what host code asks for (TraceCheck)
  }
  // The next replay is another program: it is compared. Those before it stay in doubt.
  void program_changed() {
    if (interval_ > 0) next_ = 0;
  }
  // Something was noticed that may make the next replay wrong. Those before it were fine.
  void must_verify() { must_verify_ = true; }

  // Whether the next replay is to be compared.
  bool due() const { return must_verify_ || unverified_ + 1 >= next_; }
  // Whether it is even where comparisons that can wait are put off.
  bool cannot_wait() const { return must_verify_; }
  // Replays that counted since the last comparison and may have been wrong already.
  int64_t doubtful() const { return must_verify_ ? 0 : unverified_; }
  int64_t doubtful_since() const { return unverified_since_; }

  // As CheckSchedule::replayed().
  void replayed(int64_t steps_done) {
    unverified_since_ = unverified_++ == 0 ? steps_done : std::min(unverified_since_, steps_done);
  }
  // A comparison could not be made.
  void put_off() { next_ = interval_ > 0 ? unverified_ + next() : kNever; }
  void verified() {
    next_ = interval_ > 0 ? next() : kNever;
    unverified_ = 0;
    must_verify_ = false;
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // At no fixed period: host code may have one.
  int64_t next() {
    growing_ = std::min(2 * growing_, interval_);
    return growing_ < interval_ ? growing_ : std::uniform_int_distribution<int64_t>(1, 2 * interval_ - 1)(random_);
  }

  std::minstd_rand random_{std::random_device{}()};
  int64_t interval_;
  int64_t growing_ = 1;
  int64_t unverified_ = 0;  // replays since the last comparison
  int64_t unverified_since_ = 0;
  int64_t next_ = kNever;  // replays until the next one
  bool must_verify_ = false;
};

// One signature and what became of it. Where its host code reads values back (ReadGuard), one recording stands for one
// set of values, and others of the same signature are variants of it.
struct SignatureEntry {
  enum class State { kSeen, kCaptured, kEager };

  explicit SignatureEntry(const GraphOptions& options)
      : verify(options.verify_interval), check(options.check, options.check_budget) {}
  // Forgets the captured step: the signature is as if it had been seen for the first time.
  void drop();
  // What its host code does now is recorded next, or was recorded before and is tried next. False if it changes too
  // often to pay for that. `changed`: the tensor from outside that was another one.
  bool record_again(const std::optional<StepProgram::Place>& changed, bool too_often, int64_t eager_steps_before);
  // After give_up(): what changed at every step may have settled by then.
  void retry_later();
  bool may_retry() const { return state == State::kEager && report.eager_steps >= retry_at; }
  // Whether another recording would not cost more than those before it have saved.
  bool has_paid() const { return report.replays >= kWorthCapturing * recordings; }
  int64_t bytes() const;
  // From here on it runs eager, whatever its host code reads.
  void give_up(std::string reason, bool has_variants);
  // The signature in the report, with what the captured step reads.
  void name_reads();

  static constexpr int64_t kWorthCapturing = 32;  // replays that pay for a recording

  State state = State::kSeen;
  std::unique_ptr<CapturedStep> step;
  std::vector<std::unique_ptr<CapturedStep>> parked;  // what its host code did before, and may do again
  std::size_t untried = 0;                            // of these, since the last replay
  int64_t retry_at = std::numeric_limits<int64_t>::max(), retries = 0;  // at so many eager steps
  int64_t differing_before_retry = 0;
  bool noticed = false;     // something that the step reads was let go of just now
  int64_t eager_steps = 0;  // since it was new or was dropped
  VerifySchedule verify;
  CheckSchedule check;
  std::vector<int64_t> key;  // SignatureCache's
  int64_t recordings = 0;
  std::vector<StepProgram::Place> changing;  // tensors from outside that are others from step to step
  int64_t differing_in_a_row = 0;            // steps whose host code did something else than recorded
  int64_t last_use = 0;
  int64_t plan_version = 0;  // TrainStep::plan_version at its first sight
  SignatureReport report;    // without state and bytes, which SignatureCache::report adds
  std::string inputs;        // report.signature without values that are read
  int64_t returns = 0;       // how often the values that it reads came back after others
};

using SignatureVariants = std::vector<std::unique_ptr<SignatureEntry>>;  // of one signature, at least one

// Every signature seen, with its captured step if it has one. Captured steps stay within a byte budget: the least
// recently used goes first.
class SignatureCache {
 public:
  SignatureCache(const GraphOptions& options, bool on_gpu) : options_(options), on_gpu_(on_gpu) {}

  // The entries of the step that is about to run.
  SignatureVariants& find(const StepCode& step, const MicroBatches& micro_batches);
  // The one that ran last; null if there was none.
  SignatureEntry* latest() const { return latest_; }
  void take(SignatureEntry& entry) { latest_ = &entry; }

  // What a step writes to beside its own memory: from here on part of the key of batches that share it. Whether that
  // makes another one of the key of these.
  bool add_written(const WrittenMemory::Ranges& ranges, const MicroBatches& micro_batches);

  SignatureEntry& add_variant(SignatureVariants& variants);
  // Lets those go whose values never came back; `heir` takes over what was counted.
  void merge_variants(SignatureVariants& variants, SignatureEntry& heir);
  bool has_variants(const SignatureEntry& entry) const { return entries_.at(entry.key).size() > 1; }

  // Drops captured steps until they fit the budget; `newest` stays, whatever it takes.
  void evict(const SignatureEntry& newest);
  void drop_all();
  // Drops the steps that were captured with other host numbers than those of `step`.
  void drop_outdated(const StepCode& step);
  // Has the next replay of every signature checked.
  void must_check();
  const std::vector<SignatureEntry*>& entries() const { return order_; }

  // Whether the step is still what the entry is for, whatever the micro-batches.
  static bool is_of(const SignatureEntry& entry, const StepCode& step);
  // Whether the settings around the step are those as well.
  bool is_present(const SignatureEntry& entry, const StepCode& step) const;

  // In order of first sight.
  std::vector<SignatureReport> report() const;

 private:
  using Key = std::vector<int64_t>;

  void warn_of_changing_keys() const;
  void forget_oldest();
  void forget_before(int64_t plan_version);
  int64_t bytes() const;

  GraphOptions options_;
  bool on_gpu_;
  WrittenMemory written_;
  std::map<Key, SignatureVariants> entries_;
  std::vector<SignatureEntry*> order_;  // of first sight
  SignatureVariants* found_ = nullptr;  // by the latest find()
  SignatureEntry* latest_ = nullptr;
  Key key_;  // of the current step; kept to reuse its memory
  Key latest_key_;
  int64_t new_in_a_row_ = 0;
  bool warned_of_budget_ = false;
};

}  // namespace duet
