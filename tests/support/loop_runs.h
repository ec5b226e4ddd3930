#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "data/data_loader.h"
#include "data/dataset.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// A small run of the loop and a hook that sees all of it.

namespace duet::testing {

using Names = std::vector<std::string>;

inline Batch mlp_batch(uint64_t seed) { return mlp_task().batch(4, seed); }

// Calls `visit(point)` at every point but in_step, which a replay does not call.
class EveryPointHook : public Hook {
 public:
  using Visit = std::function<void(const std::string& point, TrainContext& context)>;
  EveryPointHook(std::string name, Visit visit) : name_(std::move(name)), visit_(std::move(visit)) {}
  std::string name() const override { return name_; }
#define DUET_VISIT(point, member) \
  void member(TrainContext& context) override { visit(HookPoint::point, context); }
  DUET_HOOK_POINTS(DUET_VISIT)
#undef DUET_VISIT

 private:
  // Not where checkpoints are saved: whether there is one depends on the run.
  void visit(HookPoint point, TrainContext& context) {
    const bool saves = point == HookPoint::kBeforeSaveCheckpoint || point == HookPoint::kAfterSaveCheckpoint;
    if (!saves) visit_(to_string(point), context);
  }

  std::string name_;
  Visit visit_;
};

inline std::unique_ptr<Hook> recorder(Names& calls, const std::string& name = "recorder") {
  return std::make_unique<EveryPointHook>(
      name, [&calls](const std::string& point, TrainContext&) { calls.push_back(point); });
}

// Samples of the toy perceptron, in batches of 2.
inline std::unique_ptr<DataLoader> loader(int64_t samples, uint64_t seed = 4, bool shuffle = true) {
  const Batch all = mlp_task().batch(samples, 9);
  DataLoaderOptions options;
  options.batch_size = 2;
  return std::make_unique<DataLoader>(std::make_shared<TensorDataset>(all.items()),
                                      std::make_unique<EpochSampler>(samples, shuffle, seed), options);
}

inline std::unique_ptr<BaseTrainer> trainer_for(const std::string& mode, const LoopOptions& loop,
                                                const std::string& optimizer = "AdamW",
                                                const std::string& work_dir = "",
                                                std::vector<Schedule> schedules = {}) {
  TrainerOptions options;
  options.loop = loop;
  options.work_dir = work_dir;
  options.optimizer = OptimizerOptions::of_type(optimizer);
  options.optimizer.set("lr", 1e-2);
  options.schedules = std::move(schedules);
  seed_all(21);
  return make_trainer(mode, mlp_task().make(), options);
}

}  // namespace duet::testing
