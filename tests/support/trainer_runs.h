#pragma once

#include <memory>
#include <string>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "base/device.h"
#include "core/trainer.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"

namespace duet::testing {

// A trainer of either mode from one description, with the default generator seeded first.
inline std::unique_ptr<BaseTrainer> make_trainer(const std::string& mode, std::unique_ptr<Task> task,
                                                 TrainerOptions options = {}, const GraphOptions& graph = {}) {
  options.device = "cpu";
  if (mode == "eager") return std::make_unique<EagerTrainer>(std::move(task), options);
  return std::make_unique<GraphTrainer>(std::move(task), options, graph);
}

using duet::same_bits;

inline NamedTensors weights_of(const BaseTrainer& trainer) {
  const StateDict weights = trainer.weights();
  return {weights.tensors().begin(), weights.tensors().end()};
}

inline void expect_same_bits(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : a.tensors()) {
    ASSERT_TRUE(b.tensors().count(name)) << name << " is missing";
    EXPECT_TRUE(same_bits(tensor, b.tensor(name))) << name << " differs";
  }
}

}  // namespace duet::testing
