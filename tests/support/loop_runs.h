#pragma once

#include "data/data_loader.h"
#include "data/tensor_dataset.h"

#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

// A small run of the loop and a hook that sees all of it.

namespace duet::testing {

using Names = std::vector<std::string>;

// Calls `visit(point)` at every point but in_step, which a replay does not call.
class EveryPointHook : public Hook {
 public:
  using Visit = std::function<void(const std::string& point, TrainContext& context)>;
  EveryPointHook(std::string name, Visit visit) : name_(std::move(name)), visit_(std::move(visit)) {}
  std::string name() const override { return name_; }
  void before_run(TrainContext& c) override { visit_("before_run", c); }
  void after_run(TrainContext& c) override { visit_("after_run", c); }
  void before_train(TrainContext& c) override { visit_("before_train", c); }
  void after_train(TrainContext& c) override { visit_("after_train", c); }
  void before_train_epoch(TrainContext& c) override { visit_("before_train_epoch", c); }
  void after_train_epoch(TrainContext& c) override { visit_("after_train_epoch", c); }
  void before_train_iter(TrainContext& c) override { visit_("before_train_iter", c); }
  void after_train_iter(TrainContext& c) override { visit_("after_train_iter", c); }
  void before_val(TrainContext& c) override { visit_("before_val", c); }
  void after_val(TrainContext& c) override { visit_("after_val", c); }
  void before_val_epoch(TrainContext& c) override { visit_("before_val_epoch", c); }
  void after_val_epoch(TrainContext& c) override { visit_("after_val_epoch", c); }
  void before_val_iter(TrainContext& c) override { visit_("before_val_iter", c); }
  void after_val_iter(TrainContext& c) override { visit_("after_val_iter", c); }
  void before_test(TrainContext& c) override { visit_("before_test", c); }
  void after_test(TrainContext& c) override { visit_("after_test", c); }
  void before_test_epoch(TrainContext& c) override { visit_("before_test_epoch", c); }
  void after_test_epoch(TrainContext& c) override { visit_("after_test_epoch", c); }
  void before_test_iter(TrainContext& c) override { visit_("before_test_iter", c); }
  void after_test_iter(TrainContext& c) override { visit_("after_test_iter", c); }
  void before_predict(TrainContext& c) override { visit_("before_predict", c); }
  void after_predict(TrainContext& c) override { visit_("after_predict", c); }
  void before_predict_epoch(TrainContext& c) override { visit_("before_predict_epoch", c); }
  void after_predict_epoch(TrainContext& c) override { visit_("after_predict_epoch", c); }
  void before_predict_iter(TrainContext& c) override { visit_("before_predict_iter", c); }
  void after_predict_iter(TrainContext& c) override { visit_("after_predict_iter", c); }
  void after_load_checkpoint(TrainContext& c) override { visit_("after_load_checkpoint", c); }
  void after_backward(TrainContext& c) override { visit_("after_backward", c); }
  void before_optimizer_step(TrainContext& c) override { visit_("before_optimizer_step", c); }
  void after_optimizer_step(TrainContext& c) override { visit_("after_optimizer_step", c); }
  void on_exception(TrainContext& c) override { visit_("on_exception", c); }

 private:
  std::string name_;
  Visit visit_;
};

inline std::unique_ptr<Hook> recorder(Names& calls, const std::string& name = "recorder") {
  return std::make_unique<EveryPointHook>(name, [&calls](const std::string& point, TrainContext&) { calls.push_back(point); });
}

// Samples of the toy perceptron, in batches of 2.
inline std::unique_ptr<DataLoader> loader(int64_t samples, uint64_t seed = 4, bool shuffle = true) {
  const Batch all = mlp_task().batch(samples, 9);
  DataLoaderOptions options;
  options.batch_size = 2;
  return std::make_unique<DataLoader>(std::make_shared<TensorDataset>(all.items()), std::make_unique<EpochSampler>(samples, shuffle, seed), options);
}

inline std::unique_ptr<BaseTrainer> trainer_for(const std::string& mode, const LoopOptions& loop, const std::string& optimizer = "AdamW") {
  TrainerOptions options;
  options.loop = loop;
  options.optimizer = OptimizerOptions::of_type(optimizer);
  options.optimizer.set("lr", 1e-2);
  seed_all(21);
  return make_trainer(mode, mlp_task().make(), options);
}

}  // namespace duet::testing
