#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace duet {

class Task;

// An op's own time, without that of the ops it calls.
struct OpTime {
  std::string op, module;  // "aten::addmm"; the layer whose parameters it was called with last, empty: none yet
  int64_t calls = 0;
  double seconds = 0;
};

struct PhaseTimes {
  double forward = 0, backward = 0, optimizer = 0, hooks = 0;
};

// Times the ops of eager steps by their profiling spans, of all threads, while it lives. The backward of an op counts
// to the layer of that op.
class OpClock {
 public:
  explicit OpClock(const Task& task);
  ~OpClock();
  OpClock(const OpClock&) = delete;
  OpClock& operator=(const OpClock&) = delete;

  void begin_step(int64_t micro_batches);  // that it has, each with a backward pass
  void end_step();

  // Over all steps.
  const PhaseTimes& phases() const { return phases_; }
  std::vector<OpTime> ops() const;  // the longest first
  // The most that was allocated between the beginning of a step and its backward: what it keeps for that.
  int64_t activation_bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  enum class Phase { kNone, kForward, kBackward, kOptimizer };
  class Memory;
  struct Span;

  static std::unique_ptr<at::ObserverContext> begin_span(const at::RecordFunction& function);
  static void end_span(const at::RecordFunction& function, at::ObserverContext* span);

  void enter(const at::RecordFunction& function, Span& span);
  void leave(const Span& span, Time now);
  void begin_outermost(bool is_backward, Time now);
  void close_phase(Time until);
  std::string module_of(const at::RecordFunction& function, bool is_backward);

  std::mutex mutex_;
  std::map<const void*, std::string> module_of_parameter_;
  std::map<int64_t, std::string> module_of_sequence_;  // of the ops of this step's forward
  std::string module_;                                 // that the last parameter belongs to
  int64_t micro_batches_ = 1, backwards_ = 0;
  Phase phase_ = Phase::kNone;
  Time phase_began_{}, last_end_{};
  double hooks_in_phase_ = 0;
  PhaseTimes phases_;
  std::map<std::pair<std::string, std::string>, OpTime> ops_;
  std::shared_ptr<Memory> memory_;
  std::unique_ptr<c10::DebugInfoGuard> memory_guard_;
  at::CallbackHandle callback_ = 0;
};

}  // namespace duet
