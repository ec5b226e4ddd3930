#pragma once

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include "tests/graph/both_modes.h"

// Steps whose host code does not always do the same. Whatever graph mode makes of them, the state must be that of eager
// mode, bit by bit, or the run must end with an error that names the cause.

namespace duet::testing {

namespace F = torch::nn::functional;

// What graph mode makes of a trap: the reason is in the report, or in the error.
struct Expectation {
  Expectation(std::string reason = "", int64_t steps = 60) : reason(std::move(reason)), steps(steps) {}  // NOLINT
  Expectation(const char* reason) : Expectation(std::string(reason)) {}                                  // NOLINT

  std::string reason;
  int64_t steps;
  bool stays_captured = false;  // and nothing is said
};

inline Expectation captured(int64_t steps = 60) {
  Expectation expected("", steps);
  expected.stays_captured = true;
  return expected;
}

struct Trap {
  std::string name;
  Expectation expected;
  MakeRun set_up;
};

inline void PrintTo(const Trap& trap, std::ostream* out) { *out << trap.name; }

struct Traps {
  std::vector<Trap> traps;
  // `code` sets up a run, or is its loss or what it predicts, which is copied for each run: what it holds by value
  // begins anew.
  template <class Code>
  void operator()(const std::string& name, const Expectation& expected, Code code) {
    traps.push_back({name, expected, [code = std::move(code)](StepRun& run) {
                       if constexpr (std::is_invocable_v<const Code&, StepRun&>) {
                         code(run);
                       } else if constexpr (std::is_convertible_v<Code, PredictFn>) {
                         run.predict = code;
                       } else {
                         run.loss = code;
                       }
                     }});
  }
};

// What losses of traps are made of.
inline at::Tensor loss_of(TwoLayers& net, const at::Tensor& hidden, const Batch& batch) {
  return F::cross_entropy(net.b(hidden), batch["target"]);
}
inline at::Tensor loss_with_dropout(TwoLayers& net, const Batch& batch, bool on = true) {
  return loss_of(net, torch::dropout(torch::relu(net.a(batch["input"])), 0.3, on), batch);
}
inline at::Tensor noisy(TwoLayers& net, const Batch& batch, bool with_noise) {
  const at::Tensor loss = plain_loss(net, batch);
  return with_noise ? loss + 0.1 * net.a->weight.square().sum() : loss;
}

// `act` before one step.
inline auto at_step(int64_t step, std::function<void()> act) {
  return [step, act = std::move(act)](BaseTrainer&, int64_t n) {
    if (n == step) act();
  };
}

void add_counter_cases(Traps& add);     // counters, generators, clocks, files
void add_module_cases(Traps& add);      // modules, parameters and hooks that change
void add_aliasing_cases(Traps& add);    // batches that share memory with what the step writes
void add_setting_cases(Traps& add);     // settings of the thread around and inside steps
void add_kept_cases(Traps& add);        // tensors that outlive the step
void add_read_cases(Traps& add);        // values that the host reads back
void add_prediction_cases(Traps& add);  // predictions between steps
void add_crash_cases(Traps& add);       // what eager mode runs and a capture has stumbled over

}  // namespace duet::testing
