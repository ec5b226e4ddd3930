#include "cli/build.h"
#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/report.h"
#include "cli/run_identity.h"
#include "core/task.h"
#include "data/data_loader.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "distributed/communicator.h"
#include "distributed/detail/same_on_all_ranks.h"
#include "graph/graph_trainer.h"
#include "hooks/prediction_hooks.h"
#include "make_trainer.h"
#include "optim/schedules/detail/schedule_rules.h"

namespace duet {

namespace {

// Null for a stream.
std::shared_ptr<const Dataset> build_dataset(const std::optional<DataConfig>& data, const DatasetUse& use = {}) {
  return !data || is_source(data->node) ? nullptr : make_dataset(data->node, use);
}

// The names of a dataset's classes are those trained on, in the same order, or none.
void require_classes(const std::vector<std::string>& classes, const std::vector<std::string>& trained,
                     const std::string& way_out) {
  require<ConfigError>(classes.empty() || trained.empty() || classes == trained,
                       "[duet] found the classes " + join(classes) + ", expected " + join(trained) + way_out);
}

// Throws ConfigError for one whose numbers mean something else than those of the training data.
std::vector<std::shared_ptr<const Dataset>> build_datasets(const std::vector<DataConfig>& data, const DatasetUse& use) {
  std::vector<std::shared_ptr<const Dataset>> built;
  for (const DataConfig& one : data) {
    built.push_back(build_dataset(one, use));
    if (use.training == nullptr || built.back() == nullptr) continue;
    one.node.located([&] {
      require_classes(built.back()->class_names(), use.training->class_names(),
                      " as in the training data; leave classes out, which are then those");
      built.back()->check_fits(*use.training);
    });
  }
  return built;
}

// Folders may have come or gone since the weights were trained.
void check_classes(const RunConfig& config, const Run& run) {
  if (run.train_data == nullptr) return;
  config.train->node.located([&] {
    require_classes(run.train_data->class_names(), run.classes,
                    ", which the checkpoint was trained with; make them these (classes: [" + join(run.classes) +
                        "] sets the order), or train anew on what there is, from the weights by load_from");
  });
}

void check_same_sizes(const RunConfig& config, const std::vector<DataConfig>& data,
                      const std::vector<std::shared_ptr<const Dataset>>& built) {
  for (std::size_t i = 0; i < built.size(); ++i) {
    if (!built[i]) continue;
    check_same_on_all_ranks<DataError>(
        config.communicator(), std::to_string(built[i]->size()), [&](const RankDifference& found) {
          return c10::str("[Launch] ", data[i].node.path(), " has ", found.on_first, " samples on rank 0 and ",
                          found.there, " on rank ", found.rank,
                          ", expected the same data; give every machine a whole copy");
        });
  }
}

NamedSources named(const std::vector<DataConfig>& data, const std::vector<std::unique_ptr<DataSource>>& sources) {
  NamedSources all;
  for (std::size_t i = 0; i < sources.size(); ++i) all.push_back({data[i].name, *sources[i]});
  return all;
}

// A count holds for each of several datasets.
int64_t limit_of(const BatchLimit& limit, const std::vector<std::unique_ptr<DataSource>>& sources) {
  if (sources.empty()) return 0;
  const int64_t batches = limit.batches_of(*sources.front());
  for (const auto& source : sources) {
    if (limit.batches_of(*source) == batches) continue;
    limit.node.fail(limit.key, "is a share of datasets of different lengths, expected a count, which holds for each");
  }
  return batches;
}

std::unique_ptr<DataSource> build_loader(std::shared_ptr<const Dataset> dataset, const DataConfig& data,
                                         const RunConfig& config) {
  const Communicator& ranks = config.communicator();
  if (dataset == nullptr) {
    return make_source(data.node, {data.loader.batch_size, config.seed, ranks.rank(), ranks.world_size()});
  }
  std::unique_ptr<Sampler> sampler = build_sampler(*dataset, data, config.seed);
  sampler =
      std::make_unique<DistributedSampler>(std::move(sampler), ranks.rank(), ranks.world_size(), data.loader.drop_last);
  DataLoaderOptions options = data.loader;
  options.seed = config.seed;
  options.pin_memory = options.pin_memory && parse_device(config.trainer.device).is_cuda();
  if (data.loader_type != "default") {
    LoaderContext context{std::move(dataset), std::move(sampler), options};
    return register_loader.make(data.node.child("loader"), context);
  }
  std::unique_ptr<DataSource> loader;
  data.node.located([&] { loader = std::make_unique<DataLoader>(std::move(dataset), std::move(sampler), options); });
  return loader;
}

// None for datasets that were not read: `explain` needs no validation data.
std::vector<std::unique_ptr<DataSource>> build_sources(const std::vector<std::shared_ptr<const Dataset>>& datasets,
                                                       const std::vector<DataConfig>& data, const RunConfig& config) {
  std::vector<std::unique_ptr<DataSource>> sources;
  for (std::size_t i = 0; i < datasets.size(); ++i) sources.push_back(build_loader(datasets[i], data[i], config));
  return sources;
}

void require_training_data(const RunConfig& config) {
  if (config.train) return;
  config.root.child("data").fail_missing("train", "add data.train: {type: ..., batch_size: ...}");
}

}  // namespace

void read_training_data(const RunConfig& config, Run& run) {
  require_training_data(config);
  run.train_data = build_dataset(config.train);
  run.val_data = build_datasets(config.val, {.training = run.train_data.get()});
}

void require_encoding(const RunConfig& config, const Run& run, const RunIdentity& trained,
                      const std::string& checkpoint) {
  if (trained.encoding.empty()) return warn_of_own_encoding(run.train_data.get(), checkpoint);
  if (run.train_data == nullptr) return;
  const auto kept = build_dataset(config.train, {.encoding = trained.encoding, .reads = false});
  config.train->node.located([&] { run.train_data->check_fits(*kept); });
}

void warn_of_own_encoding(const Dataset* data, const std::string& checkpoint) {
  if (data == nullptr || data->encoding().empty()) return;
  log_warning("'" + checkpoint + "' does not hold what the numbers of its data mean (means, categories, characters), " +
              "as those of older versions and files of weights: what the data gives today is used");
}

void build_loaders(const RunConfig& config, Run& run) {
  run.train = build_loader(run.train_data, *config.train, config);
  run.val = build_sources(run.val_data, config.val, config);
  run.steps_per_epoch = limited_loop(config, run).steps_per_epoch(*run.train);
}

void build_trainer(const RunConfig& config, const std::string& mode, const LoopOptions& loop, Run& run) {
  seed_all(config.seed);
  std::unique_ptr<Task> task;
  run_on_all_ranks(config.communicator(), [&] { task = make_model(config.model, {run.train_data.get()}); });
  TrainerOptions options = config.trainer;
  options.loop = loop;
  if (mode == "graph") {
    auto trainer = std::make_unique<GraphTrainer>(std::move(task), options, config.graph);
    run.graph = trainer.get();
    run.trainer = std::move(trainer);
  } else {
    run.trainer = make_trainer(Mode::kEager, std::move(task), options, config.graph);
  }
  name_classes(config.metrics, run.train_data == nullptr ? run.classes : run.train_data->class_names());
  add_metrics(config.metrics, *run.trainer);
}

int64_t planned_steps(const LoopOptions& loop, int64_t steps_per_epoch) {
  return Progress{.max_steps = loop.max_steps, .max_epochs = loop.max_epochs, .steps_per_epoch = steps_per_epoch}
      .planned_steps();
}

// Checked against each other here, where the place in the config is known.
std::vector<Schedule> schedules_of(const RunConfig& config, const Run& run) {
  const auto schedules = resolve_schedules(config.schedules, run.steps_per_epoch);
  config.root.child("param_scheduler").located([&] {
    validate_schedules(schedules, {planned_steps(config.trainer.loop, run.steps_per_epoch), run.steps_per_epoch});
  });
  return schedules;
}

LoopOptions limited_loop(const RunConfig& config, const Run& run) {
  LoopOptions loop = config.trainer.loop;
  if (run.train) loop.limit_train_batches = config.limits.train.batches_of(*run.train);
  loop.limit_val_batches = limit_of(config.limits.val, run.val);
  loop.limit_test_batches = limit_of(config.limits.test, run.test);
  if (run.test.size() == 1) loop.limit_predict_batches = limit_of(config.limits.predict, run.test);
  return loop;
}

HookContext hook_context(const RunConfig& config, const Run& run) {
  HookContext context{run.trainer->hooks()};
  context.planned_steps = planned_steps(config.trainer.loop, run.steps_per_epoch);
  context.steps_per_epoch = run.steps_per_epoch;
  context.schedules = schedules_of(config, run);
  context.metrics = val_metric_names(config);
  check_monitors(config.schedules, context.metrics);
  context.work_dir = config.work_dir;
  context.scratch = config.scratch;
  context.dry_run = config.dry_run > 0;
  if (run.train)
    context.training_data = [&config, &run] { return build_loader(run.train_data, *config.train, config); };
  return context;
}

void add_hooks(const RunConfig& config, Run& run) { add_hooks(config.hooks, hook_context(config, run), *run.trainer); }

void load_start_weights(const RunConfig& config, BaseTrainer& trainer) {
  if (!config.load_from) return;
  const std::string& path = config.load_from->source.path;
  run_on_all_ranks(config.communicator(), [&] {
    const StateDict weights = read_weights(config.load_from->source);
    try {
      const WeightsReport report = load_matching_weights(trainer.task(), weights, config.load_from->strict);
      const std::string text = "loaded weights from '" + path + "': " + report.text();
      report.exact() ? log_info(text) : log_warning(text);
    } catch (const CheckpointError& error) {
      throw CheckpointError("[load_from] '" + path + "': " + error.what());
    }
  });
  check_same_on_all_ranks<CheckpointError>(
      config.communicator(), weights_hash(trainer), [&](const RankDifference& found) {
        return c10::str("[load_from] '", path, "' holds other weights on rank ", found.rank,
                        " than on rank 0, expected the same file; give every machine a copy");
      });
}

namespace {

void check_limits(const RunConfig& config) {
  const LoopOptions& loop = config.trainer.loop;
  if (loop.max_steps != 0 || (loop.max_epochs != 0 && !config.train->infinite)) return;
  config.root.child("trainer").fail("max_steps", config.train->infinite
                                                     ? "is missing; add it, since an infinite sampler has no epochs"
                                                     : "and max_epochs are both missing or 0; set one of them");
}

// Unless the config has one.
void add_prediction_writer(const std::string& folder, BaseTrainer& trainer) {
  for (const std::string& name : trainer.hooks().order()) {
    if (dynamic_cast<PredictionWriterHook*>(trainer.hooks().find(name)) != nullptr) return;
  }
  trainer.add_hook(std::make_unique<PredictionWriterHook>(PredictionWriterHookOptions{.folder = folder}));
}

}  // namespace

Run build_training(const RunConfig& config, const std::vector<std::string>& classes) {
  Run run;
  run.classes = classes;
  run_on_all_ranks(config.communicator(), [&] {
    require_training_data(config);
    check_limits(config);
    // These are not used here; a mistake in them would otherwise show when the training is done.
    for (const DataConfig& data : config.test) check_dataset(data.node);
    if (config.predict) check_dataset(config.predict->node);
    read_training_data(config, run);
    check_classes(config, run);
    build_loaders(config, run);
  });
  check_same_sizes(config, {*config.train}, {run.train_data});
  check_same_sizes(config, config.val, run.val_data);
  build_trainer(config, config.mode, limited_loop(config, run), run);
  return run;
}

Run build_measured_run(const RunConfig& config, const std::string& mode, const Run& data, int64_t steps) {
  Run run;
  run.train_data = data.train_data;
  run.val_data = data.val_data;
  build_loaders(config, run);
  LoopOptions loop = limited_loop(config, run);
  loop.max_steps = std::max(planned_steps(loop, run.steps_per_epoch), steps);
  loop.max_epochs = 0;
  loop.max_seconds = 0;
  RunConfig measured = config;
  measured.graph.fuse_after = 0;  // few steps are to tell what many take
  build_trainer(measured, mode, loop, run);
  add_hooks(config, run);
  load_start_weights(config, *run.trainer);
  return run;
}

void train_on(DataSource& data, const RunConfig& config, Run& run) {
  run.val.empty() ? run.trainer->train(data) : run.trainer->train(data, named(config.val, run.val));
}

MetricValues test_on(const std::vector<DataConfig>& data, Run& run) { return run.trainer->test(named(data, run.test)); }

namespace {

// A part of data that are not those of the training any more is another part, with samples in it that were trained on.
void warn_of_another_part(const RunConfig& config, const std::vector<DataConfig>& data, const RunIdentity& trained) {
  const auto is_drawn = [&config](const DataConfig& one) { return is_part_of(*config.train, one); };
  if (!config.train || trained.data.empty() || std::ranges::none_of(data, is_drawn)) return;
  Run run;
  try {
    run.train_data = build_dataset(config.train, {.classes = trained.classes, .encoding = trained.encoding});
  } catch (const std::exception&) {
    return;  // it need not be there
  }
  const std::string now = data_fingerprint(config, run);
  if (now.empty() || now == trained.data) return;
  log_warning(
      "data.train is not what the checkpoint was trained on (" + now + "; then " + trained.data +
      "): a split of it is another one now, and may hold samples that were trained on. Bring back that data, or "
      "evaluate on data of their own");
}

}  // namespace

Run build_evaluation(const RunConfig& config, const std::vector<DataConfig>& data, const std::string& output,
                     const RunIdentity& trained) {
  Run run;
  run.classes = trained.classes;
  run_on_all_ranks(config.communicator(), [&] {
    DatasetUse use{.classes = trained.classes, .encoding = trained.encoding, .reads = trained.encoding.empty()};
    run.train_data = build_dataset(config.train, use);  // models may ask it for their sizes
    check_classes(config, run);
    use.training = run.train_data.get();
    use.predicts = !output.empty();
    use.reads = true;
    run.test_data = build_datasets(data, use);
    if (config.is_main()) warn_of_another_part(config, data, trained);
    run.test = build_sources(run.test_data, data, config);
  });
  check_same_sizes(config, data, run.test_data);
  build_trainer(config, config.mode, limited_loop(config, run), run);
  RunConfig untrained = config;
  untrained.schedules.clear();
  run.steps_per_epoch = 1;  // what counts epochs counts on a length, though nothing is trained here
  HookContext context = hook_context(untrained, run);
  context.evaluates = true;
  context.metrics.clear();  // those of a test may be others
  context.output = output;
  run_on_all_ranks(config.communicator(), [&] {
    add_hooks(config.hooks, context, *run.trainer);
    if (!output.empty()) add_prediction_writer(output, *run.trainer);
  });
  return run;
}

}  // namespace duet
