#pragma once

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "checkpoint/checkpoint.h"
#include "hooks/nan_guard_hook.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

namespace duet {

// Runs with a NaNGuardHook, in both modes.
class NaNGuard : public testing::InBothModes {
 protected:
  static constexpr double kInf = std::numeric_limits<double>::infinity();
  static constexpr int64_t kBad = 6;  // the step whose batch is not finite

  std::unique_ptr<BaseTrainer> make_plain(TrainerOptions options = {}, int64_t verify_interval = 2) {
    GraphOptions graph;
    graph.fallback = Fallback::kStrict;
    graph.verify_interval = verify_interval;
    options.work_dir = folder_.path().string();
    seed_all(3);
    return testing::make_trainer(GetParam(), testing::mlp_task().make(), options, graph);
  }
  std::unique_ptr<BaseTrainer> make(const NaNGuardHookOptions& options, const TrainerOptions& trainer_options = {},
                                    int64_t verify_interval = 2) {
    auto trainer = make_plain(trainer_options, verify_interval);
    trainer->add_hook(std::make_unique<NaNGuardHook>(options));
    return trainer;
  }

  static Batch bad_batch() {
    Batch batch = testing::mlp_task().batch(8, 1);
    batch["input"][3][2] = kInf;
    return batch;
  }
  static TrainerOptions skipping() {
    TrainerOptions options;
    options.non_finite = NonFinite::kSkip;
    return options;
  }
  static void step(BaseTrainer& trainer, double bad = kInf) {
    Batch batch = testing::mlp_task().batch(8, static_cast<uint64_t>(trainer.progress().step));
    if (trainer.progress().step + 1 == kBad) batch["input"][3][2] = bad;
    trainer.step(batch);
  }
  static void steps(BaseTrainer& trainer, int64_t until, double bad = kInf) {
    while (trainer.progress().step < until) step(trainer, bad);
  }
  // One number of the first tensor whose name ends so becomes infinite.
  static void spoil(const BaseTrainer& trainer, const std::string& end) {
    const StateDict state = trainer.state_dict();
    for (const auto& [name, tensor] : state.tensors()) {
      if (!name.ends_with(end)) continue;
      tensor.detach().view(-1)[0].fill_(kInf);
      return;
    }
    FAIL() << "no tensor " << end;
  }
  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(CheckpointStore::root_of(folder_.path().string()))) {
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDir folder_;
};

}  // namespace duet
