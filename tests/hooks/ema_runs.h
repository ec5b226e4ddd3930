#pragma once

#include <memory>
#include <string>
#include "hooks/ema_hook.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

// Runs of toy models with an EMAHook, for its tests.

namespace duet::testing {

inline GraphOptions watched_graph() {
  GraphOptions graph;
  graph.fallback = Fallback::kStrict;
  graph.verify_interval = 2;  // every other replay runs both ways
  return graph;
}

struct EMASetting {
  EMAHookOptions ema = {.average = {.momentum = 0.2}};
  ToyTask task = mlp_task();
  TrainerOptions options{};
};

inline std::unique_ptr<BaseTrainer> make(const std::string& mode, EMASetting setup = {}) {
  seed_all(5);
  setup.options.optimizer = AdamW{.lr = 1e-2};
  auto trainer = make_trainer(mode, setup.task.make(), setup.options, watched_graph());
  trainer->add_hook(std::make_unique<EMAHook>(setup.ema));
  return trainer;
}

inline void steps(BaseTrainer& trainer, int64_t from, int64_t to, const ToyTask& task = mlp_task()) {
  for (int64_t n = from; n < to; ++n) trainer.step(task.batch(8, static_cast<uint64_t>(n)));
}

inline StateDict copy_of(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, tensor] : state.tensors()) copy.set(name, tensor.detach().clone());
  for (const auto& [name, value] : state.values()) copy.set(name, value);
  return copy;
}

inline StateDict average_of(const BaseTrainer& trainer, const std::string& name = "ema") {
  return copy_of(trainer.state_dict().part("hooks." + name + ".weights"));
}

inline bool equal(const StateDict& a, const StateDict& b) {
  for (const auto& [name, tensor] : a.tensors()) {
    if (!same_bits(tensor, b.tensor(name))) return false;
  }
  return a.tensors().size() == b.tensors().size();
}

class EMA : public InBothModes {};

}  // namespace duet::testing
