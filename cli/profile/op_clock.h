#pragma once

#include <array>
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

  static constexpr std::array kPhases = {"forward", "backward", "optimizer", "hooks"};
  // Over all steps.
  std::vector<std::pair<const char*, double>> phases() const;  // by name, in seconds
  std::vector<OpTime> ops() const;                             // the longest first
  // The most that was allocated between the beginning of a step and its backward: what it keeps for that.
  int64_t activation_bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  enum Phase { kForward, kBackward, kOptimizer, kHooks, kNone };
  class Memory;
  struct Span;

  static std::unique_ptr<at::ObserverContext> begin_span(const at::RecordFunction& function);
  static void end_span(const at::RecordFunction& function, at::ObserverContext* span);

  void enter(const at::RecordFunction& function, Span& span);
  void leave(const Span& span, Time now);
  void begin_outermost(bool is_backward, Time now);
  void close_phase(Time until);
  std::string module_of(const at::RecordFunction& function, bool is_backward);

  // Where the step in progress is.
  struct Step {
    int64_t micro_batches = 1, backwards = 0;
    Phase phase = kNone;
    Time phase_began{}, last_end{};
    double hooks_in_phase = 0;
    std::string module{};                                 // that the last parameter belongs to
    std::map<int64_t, std::string> module_of_sequence{};  // of the ops of its forward
  };

  std::mutex mutex_;
  std::map<const void*, std::string> module_of_parameter_;
  Step step_;
  std::array<double, kPhases.size()> seconds_{};  // by Phase
  std::map<std::pair<std::string, std::string>, OpTime> ops_;
  std::shared_ptr<Memory> memory_;
  std::unique_ptr<c10::DebugInfoGuard> memory_guard_;
  at::CallbackHandle callback_ = 0;
};

}  // namespace duet
