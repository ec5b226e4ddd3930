#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <gtest/gtest.h>
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

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

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
