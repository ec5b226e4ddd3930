#include <duet/cli/build.h>

#include <c10/util/StringUtil.h>
#include <duet/cli/registry.h>
#include <duet/core/device.h>
#include <duet/core/error.h>
#include <duet/core/log.h>
#include <duet/core/metric.h>
#include <duet/core/random.h>
#include <duet/core/text_dataset.h>
#include <duet/eager/eager_trainer.h>
#include <duet/graph/graph_trainer.h>
#include <duet/hooks/default_hooks.h>
#include <duet/hooks/param_scheduler_hook.h>
#include <duet/optim/schedule_curve.h>

#include <algorithm>

namespace duet {

void require_training_data(const RunConfig& config) {
  if (config.train) return;
  config.root.child("data").fail_missing("train", "add data.train: {type: ..., batch_size: ...}");
}

std::shared_ptr<const Dataset> build_dataset(const std::optional<DataConfig>& data) {
  return data ? make_dataset(data->node) : nullptr;
}

std::unique_ptr<DataLoader> build_loader(std::shared_ptr<const Dataset> dataset, const DataConfig& data, uint64_t seed,
                                         at::Device device) {
  std::unique_ptr<Sampler> sampler;
  if (data.infinite) {
    sampler = std::make_unique<InfiniteSampler>(dataset->size(), data.shuffle, seed);
  } else {
    sampler = std::make_unique<EpochSampler>(dataset->size(), data.shuffle, seed);
  }
  DataLoaderOptions options = data.loader;
  options.pin_memory = options.pin_memory && device.is_cuda();
  std::unique_ptr<DataLoader> loader;
  data.node.located([&] { loader = std::make_unique<DataLoader>(std::move(dataset), std::move(sampler), options); });
  return loader;
}

void check_same_characters(const Dataset* train, const Dataset* other, const DataConfig& config) {
  const auto* first = dynamic_cast<const TextDataset*>(train);
  const auto* second = dynamic_cast<const TextDataset*>(other);
  if (first == nullptr || second == nullptr || first->vocabulary() == second->vocabulary()) return;
  config.node.fail("path", c10::str("names a text with ", second->vocab_size(), " distinct characters, expected the ",
                                    first->vocab_size(), " of data.train, since a text numbers its own; take a split of "
                                    "the same file"));
}

void build_trainer(const RunConfig& config, const std::string& mode, const LoopOptions& loop, Run& run) {
  seed_all(config.seed);
  std::unique_ptr<Task> task = make_model(config.model, {run.train_data.get()});
  TrainerOptions options = config.trainer;
  options.loop = loop;
  if (mode == "graph") {
    auto trainer = std::make_unique<GraphTrainer>(std::move(task), options, config.graph);
    run.graph = trainer.get();
    run.trainer = std::move(trainer);
  } else {
    run.trainer = std::make_unique<EagerTrainer>(std::move(task), options);
  }
  for (const MetricConfig& metric : config.metrics) {
    // The mean loss is part of every evaluation.
    if (metric.type == "Accuracy")
      run.trainer->add_metric(std::make_unique<Accuracy>(metric.target, metric.prediction));
  }
}

int64_t planned_updates(const LoopOptions& loop, int64_t updates_per_epoch) {
  const int64_t by_epochs = loop.max_epochs * updates_per_epoch;
  if (loop.max_updates <= 0) return by_epochs;
  return by_epochs > 0 ? std::min(loop.max_updates, by_epochs) : loop.max_updates;
}

// Checked against each other here, where the place in the config is known.
std::vector<ScheduleOptions> schedules_of(const RunConfig& config, const Run& run) {
  const auto schedules = resolve_schedules(config.schedules, run.updates_per_epoch);
  config.root.child("param_scheduler").located([&] {
    validate_schedules(schedules, {planned_updates(config.trainer.loop, run.updates_per_epoch), run.updates_per_epoch});
  });
  return schedules;
}

void add_schedule(const RunConfig& config, Run& run) {
  if (config.schedules.empty()) return;
  run.trainer->add_hook(std::make_unique<ParamSchedulerHook>(schedules_of(config, run)));
}

void add_custom_hooks(const RunConfig& config, Run& run) {
  for (const ConfigNode& node : config.custom_hooks) {
    node.located([&] { run.trainer->add_hook(make_hook(node, {run.trainer->hooks()})); });
  }
}

void add_hooks(const RunConfig& config, Run& run) {
  DefaultHooksOptions hooks = config.hooks;
  hooks.param_scheduler = schedules_of(config, run);
  if (config.checkpoint_by_epoch) {
    if (run.updates_per_epoch <= 0) {
      config.root.child("default_hooks").child("checkpoint").fail(
          "by_epoch", "is true, but the data has no epochs; count in updates with by_epoch: false");
    }
    hooks.checkpoint.interval *= run.updates_per_epoch;
  }
  add_default_hooks(*run.trainer, hooks);
  add_custom_hooks(config, run);
}

Run build_training(const RunConfig& config) {
  require_training_data(config);
  const LoopOptions& loop = config.trainer.loop;
  if (loop.max_updates == 0 && (loop.max_epochs == 0 || config.train->infinite)) {
    config.root.child("trainer").fail("max_updates", config.train->infinite
                                                         ? "is missing; add it, since an infinite sampler has no epochs"
                                                         : "and max_epochs are both missing; add one of them");
  }
  if (config.hooks.save && !config.hooks.checkpoint.save_best.empty() && !config.val) {
    log_warning("default_hooks.checkpoint.save_best has no effect without data.val");
  }
  const at::Device device = parse_device(config.trainer.device);
  Run run;
  run.train_data = build_dataset(config.train);
  run.val_data = build_dataset(config.val);
  if (config.val) check_same_characters(run.train_data.get(), run.val_data.get(), *config.val);
  run.train = build_loader(run.train_data, *config.train, config.seed, device);
  if (run.val_data) run.val = build_loader(run.val_data, *config.val, config.seed, device);
  run.updates_per_epoch = loop.updates_per_epoch(*run.train);
  build_trainer(config, config.mode, loop, run);
  return run;
}

}  // namespace duet
