#pragma once

#include <string>
#include <vector>
#include <gtest/gtest.h>
#include "tests/support/trainer_runs.h"

namespace duet::testing {

inline TrainerOptions adamw() {
  TrainerOptions options;
  options.optimizer = AdamW{.lr = 1e-3, .weight_decay = 0.01};
  return options;
}

inline GraphOptions strict() { return {.fallback = Fallback::kStrict}; }

inline const std::vector<std::string>& modes() {
  static const std::vector<std::string> both = {"eager", "graph"};
  return both;
}

inline void expect_replayed(BaseTrainer& trainer, int64_t least) {
  auto* graph = dynamic_cast<GraphTrainer*>(&trainer);
  ASSERT_NE(graph, nullptr);
  EXPECT_GE(graph->replays(), least);
  for (const SignatureReport& report : graph->report()) EXPECT_EQ(report.state, "captured") << report.reason;
}

inline std::string missing(const std::string& path) {
  return "there is no '" + path + "'; tests/script/make_script_models.py writes it, with a Python that has torch";
}

}  // namespace duet::testing
