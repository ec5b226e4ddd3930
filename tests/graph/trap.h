#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>
#include <torch/torch.h>
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// Steps whose host code does not always do the same. Whatever graph mode makes of them, the state must be that of eager
// mode, bit by bit, or the run must end with an error that names the cause.

namespace duet::testing {

using TrapLoss = std::function<at::Tensor(TwoLayers&, const Batch&)>;

// One run of a trap: the model, what host code refers to, and what the test does between steps.
struct TrapRun {
  std::shared_ptr<TwoLayers> net = std::make_shared<TwoLayers>();
  TrapLoss loss;
  std::function<void(BaseTrainer&, int64_t step)> between = nullptr;  // before each step
  std::function<std::vector<at::Tensor>()> seen = nullptr;            // what the user saw, compared as well
  std::function<Batch(int64_t step)> batch = nullptr;                 // in the place of the ordinary one
  bool with_ids = false;                                              // batches have an "id": the number of the step
};

struct Trap {
  std::string name;
  std::function<TrapRun()> make;
  std::string reason{};  // in the report, or in the error
  int64_t steps = 60;
  bool stays_captured = false;  // and nothing is said
};

inline void PrintTo(const Trap& trap, std::ostream* out) { *out << trap.name; }

struct Traps {
  std::vector<Trap> traps;
  void operator()(const std::string& name, std::function<TrapRun()> make, const std::string& reason = "",
                  int64_t steps = 60) {
    traps.push_back({name, std::move(make), reason, steps});
  }
  // A trap whose loss alone has a memory.
  void loss(const std::string& name, const std::function<TrapLoss()>& make, const std::string& reason = "",
            int64_t steps = 60) {
    (*this)(name, [make] { return TrapRun{.loss = make()}; }, reason, steps);
  }
};

void add_counter_cases(Traps& add);   // counters, generators, clocks, files
void add_module_cases(Traps& add);    // modules, parameters and hooks that change
void add_aliasing_cases(Traps& add);  // batches that share memory with what the step writes
void add_setting_cases(Traps& add);   // settings of the thread around and inside steps
void add_kept_cases(Traps& add);      // tensors that outlive the step
void add_read_cases(Traps& add);      // values that the host reads back
void add_crash_cases(Traps& add);     // what eager mode runs and a capture has stumbled over

}  // namespace duet::testing
