#pragma once

#include <duet/core/data_source.h>
#include <duet/core/hook_list.h>
#include <duet/core/metric.h>
#include <duet/core/train_context.h>
#include <duet/core/update_rule.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace duet {

struct LoopOptions {
  int64_t max_updates = 0;   // 0: no limit by updates
  int64_t max_epochs = 0;    // 0: no limit by epochs; one of the two limits must be set to call train()
  int64_t accumulate = 1;    // micro-batches per update; the last update of an epoch may have fewer
  int64_t val_interval = 0;  // updates between validations; 0: once per epoch
  std::string work_dir{};    // where hooks write; empty: nowhere

  // Throws ConfigError naming the field and its range.
  void validate() const;
};

// The loop, its counters and its hook list: the same for both modes. A subclass adds how one update runs.
class BaseTrainer : public Stateful {
 public:
  ~BaseTrainer() override;

  void add_hook(std::unique_ptr<Hook> hook) { hooks_.add(std::move(hook)); }
  void add_metric(std::unique_ptr<Metric> metric);

  // Trains to the limits of LoopOptions, from where this trainer stands (0, or a loaded state).
  // Validates on `validation` every val_interval updates if it is given.
  void train(DataSource& data, DataSource* validation = nullptr);
  MetricValues validate(DataSource& data);
  MetricValues test(DataSource& data);
  // Calls `sink(batch, outputs)` for every batch.
  void predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink);

  // One update in a loop of your own; hooks fire. `window` are the micro-batches of this update. The results stay on the
  // device and are valid until the next update.
  const UpdateOutput& step(const Batch& batch);
  const UpdateOutput& step(const std::vector<Batch>& window);

  int64_t update() const { return context_.update; }
  int64_t epoch() const { return context_.epoch; }
  const std::string& stop_reason() const { return context_.stop_reason; }
  Task& task() { return rule_->task(); }
  HyperParameters& hyper_parameters() { return *rule_; }
  HookList& hooks() { return hooks_; }
  at::Device device() const { return device_; }

  // Parameters and buffers alone, by the task's names; shared, not copied.
  StateDict weights() const;
  // Throws CheckpointError that lists every missing, unknown or differing name; then nothing has changed.
  void load_weights(const StateDict& weights);

  // Weights, buffers, optimizer, random state, data position, hooks and counters.
  StateDict state_dict() const override;
  // Checks names, shapes and dtypes of everything before it changes anything; throws CheckpointError.
  void load_state_dict(const StateDict& state) override;

 protected:
  BaseTrainer(std::string mode, std::unique_ptr<UpdateRule> rule, at::Device device, LoopOptions options);

  // Runs one update and returns its results.
  virtual UpdateOutput run_update(const Window& window, UpdatePoints& points) = 0;

  UpdateRule& rule() { return *rule_; }
  const NamedTensors& parameters() const { return rule_->parameters(); }

 private:
  class Points;

  void train_epoch(DataSource& data, DataSource* validation);
  bool fetch_window(DataSource& data, Window& window);
  void weigh(Window& window);
  void run_window(Window& window);
  bool finished() const;
  void validate_if_due(DataSource* validation, bool epoch_ends);
  MetricValues evaluate(DataSource& data, bool test);
  void check_weights(const StateDict& saved) const;

  std::unique_ptr<UpdateRule> rule_;
  at::Device device_;
  LoopOptions options_;
  HookList hooks_;
  std::vector<std::unique_ptr<Metric>> metrics_;
  TrainContext context_;
  UpdateOutput output_;
  DataSource* data_ = nullptr;    // the source in use, for its position
  StateDict pending_data_state_;  // loaded before the source was known
  std::unique_ptr<Points> points_;
  Window step_window_;
};

}  // namespace duet
