#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "checkpoint/weights_file.h"
#include "cli/config/config_options.h"
#include "core/trainer_options.h"
#include "data/data_loader.h"
#include "data/data_source.h"
#include "distributed/communicator.h"
#include "graph/graph_options.h"
#include "optim/groups/param_group.h"
#include "optim/schedules/schedule.h"

namespace duet {

class BaseTrainer;
struct HookContext;

// One hook of `default_hooks` or `custom_hooks`, not yet with its options.
struct HookConfig {
  ConfigNode node;
  std::string key;  // of default_hooks; empty in custom_hooks

  std::string type() const;  // what the node says, else what stands under the key
};

// Both lists, without the null ones, in the order in which they are added. Throws ConfigError for a key of
// default_hooks that is no built-in one and has no type. Everything else is checked when the hooks are built.
std::vector<HookConfig> read_hooks(const ConfigNode& root);
// Reads the options of duet's own hooks, so that a mistake is found before models and data are built. `metrics`: what a
// validation reports.
void check_builtin_hooks(const std::vector<HookConfig>& hooks, const std::vector<std::string>& metrics);
// Builds them and adds them to `trainer`, `context.hooks` being its list.
void add_hooks(const std::vector<HookConfig>& hooks, const HookContext& context, BaseTrainer& trainer);
// What stands under a built-in key of default_hooks that names no type; empty for other keys.
const std::string& default_hook_type(const std::string& key);

// One entry of evaluator.
struct MetricConfig {
  ConfigNode node;  // built from again for every trainer
  std::string prefix;

  std::vector<std::string> names() const;  // of its results, prefix included
};

// Results' names before the data is read, which may name classes: beside "f1_0" there is "f1_*", which stands for all
// that begin like it in require_metric().
std::vector<std::string> with_class_patterns(std::vector<std::string> names);
// `evaluator`, or `val_evaluator` as mmengine calls it: a map or a list of them. Every key is checked. Throws
// ConfigError for two results of one name.
std::vector<MetricConfig> read_metrics(const ConfigNode& root);
// `test_evaluator`; `otherwise` if there is none.
std::vector<MetricConfig> read_test_metrics(const ConfigNode& root, const std::vector<MetricConfig>& otherwise);
// Gives metrics over as many classes the names of these, by number, unless the config names them. Their results are
// called by them from then on.
void name_classes(const std::vector<MetricConfig>& metrics, const std::vector<std::string>& names);
// What an evaluation will report, in order; "loss" is last unless it is named before.
std::vector<std::string> metric_names(const std::vector<MetricConfig>& metrics);
// Throws ConfigError at `key` unless `metric` is one of `names`.
void require_metric(const ConfigNode& node, const std::string& key, const std::string& metric,
                    const std::vector<std::string>& names);
void add_metrics(const std::vector<MetricConfig>& metrics, BaseTrainer& trainer);

// What `optim_wrapper` holds beside its sections, of TrainerOptions.
const OptionFields& optim_wrapper_fields();
// `optim_wrapper`: optimizer, clip_grad, amp, loss_scale, non_finite, constructor and paramwise_cfg.
void read_optim_wrapper(const ConfigNode& node, TrainerOptions& options);
// mmengine's two constructors, as the registry takes them.
ParamGroupsFn paramwise_constructor(const ConfigNode& paramwise_cfg);
ParamGroupsFn layer_decay_constructor(const ConfigNode& paramwise_cfg);

// One entry of param_scheduler, as written: with by_epoch it counts epochs.
struct ScheduleConfig {
  Schedule options;
  ConfigNode node;
};

// Reads `param_scheduler`. Type names are duet's (Linear, Cosine, ...), or mmengine's: those with LR, Momentum or
// ParamScheduler at the end, which come with mmengine's default factors; and those of register_schedule().
std::vector<ScheduleConfig> read_schedules(const ConfigNode& root);
// The names that are not registered; those with LR, Momentum or ParamScheduler at the end on request.
std::vector<std::string> builtin_schedules(bool with_endings = true);

// Throws ConfigError for a schedule that watches a metric which is not one of `metrics`.
void check_monitors(const std::vector<ScheduleConfig>& schedules, const std::vector<std::string>& metrics);

// The schedules with epochs as steps where they are to be converted. Throws ConfigError if one counts epochs and
// their length is not known (0).
std::vector<Schedule> resolve_schedules(const std::vector<ScheduleConfig>& schedules, int64_t steps_per_epoch);

// `load_from`: weights that a run starts from; its counters, optimizer and data start anew.
struct LoadFromConfig {
  WeightsSource source;
  bool strict = false;  // every tensor must be there, with its shape and type
  static const OptionFields& fields();
};

// A limit on the micro-batches of an epoch or a pass as a config writes it: a count, or a share of them.
struct BatchLimit {
  ConfigNode node;  // the map with the key
  std::string key;
  int64_t count = 0;  // 0: no count
  double share = 0;   // 0: no share
  int64_t most = 0;   // what either comes to is cut to this; 0: it is not

  // As a count, cut to `most`; 0: no limit. Throws ConfigError for a share of a number that is not known, or if it is
  // not one batch.
  int64_t batches_of(const DataSource& data) const;

 private:
  int64_t as_written(const DataSource& data) const;
};

struct BatchLimits {
  BatchLimit train, val, test, predict;
};

// One of data.train, data.val, data.test, data.predict, or a named dataset of data.val or data.test.
struct DataConfig {
  std::string name;  // empty: the only one there
  ConfigNode node;   // type and the dataset's own keys, checked when the dataset is built
  DataLoaderOptions loader;
  std::string loader_type = "default";  // or registered
  bool shuffle = false;
  std::string sampler = "default";    // one of builtin_samplers(), or registered
  std::vector<double> class_weights;  // of sampler weighted
  std::string sample_weights;         // likewise: a tensor of the dataset or a .npy file; empty: class_weights
  int64_t samples_per_epoch = 0;      // of samplers that draw with replacement; 0: the dataset's size
  bool infinite = false;              // no epochs
  static const OptionFields& fields();
};

// "default", "infinite", ...
const std::vector<std::string>& builtin_samplers();
// The keys of DataConfig for samplers that draw with replacement, which no evaluation takes.
const std::vector<std::string>& keys_of_drawing();

// A whole config with every value checked that can be checked before models and data are built.
struct RunConfig {
  ConfigNode root;
  std::string work_dir;
  std::string mode = "eager";
  uint64_t seed = 0;
  ConfigNode model;  // checked when the model is built
  std::optional<LoadFromConfig> load_from;
  std::optional<DataConfig> train, predict;
  std::vector<DataConfig> val, test;  // several have names
  TrainerOptions trainer;             // work_dir and device included, loop's limits on batches not
  BatchLimits limits;
  int64_t dry_run = 0;  // steps of a run that only tries everything out; 0: a real one
  GraphOptions graph;
  ConnectOptions connect;
  Launch launch;  // of a command that several processes may run together
  std::vector<ScheduleConfig> schedules;
  std::vector<HookConfig> hooks;           // checked when they are built
  std::vector<MetricConfig> metrics;       // evaluator
  std::vector<MetricConfig> test_metrics;  // test_evaluator, or the same
  bool scratch = false;                    // work_dir is thrown away after the run
  static const OptionFields& fields();     // of its single values

  // The processes that run this together; null: this one alone.
  Communicator& communicator() const { return *trainer.distributed.communicator; }
  bool is_main() const { return launch.rank == 0; }  // which writes and speaks for all
};

// `name`: what the work_dir is called if the config names none, runs/<name>. `world_size`: the processes that a step is
// shared by.
RunConfig parse_run_config(const ConfigNode& root, const std::string& name, int64_t world_size = 1);

// LiBai's arithmetic: trainer.global_batch_size sets the one of batch_size and accumulate that is not given, or
// batch_size; not in the config, which is saved.
void fit_batch_size(const ConfigNode& root, int64_t world_size, RunConfig& config);
// `auto_scale_lr` as mmengine's, for steps of `batch_size` samples over all processes and micro-batches: all learning
// rates times batch_size / base_batch_size.
void scale_learning_rates(const ConfigNode& root, int64_t batch_size, TrainerOptions& trainer);

// Keeps the samples of an evaluation out of those that are trained on, where both are parts of the same files: such a
// part takes val_fraction and split_seed of the training data if it has none, and may have no others. Warns of an
// evaluation on samples that are trained on.
void share_split(const DataConfig& train, const std::vector<DataConfig>& evaluated);

// Warns where pictures that are evaluated or predicted get another Normalize than those that are trained on, or none.
void compare_normalize(const DataConfig& train, const DataConfig& evaluated);

// Whether `data` takes a part, drawn by a seed, of files that `train` reads.
bool is_part_of(const DataConfig& train, const DataConfig& data);

// What a validation of the config reports: "loss", or "clean/loss" of a dataset that has a name.
std::vector<std::string> val_metric_names(const RunConfig& config);

// The same run with `folder` for all that it writes.
RunConfig in_scratch(RunConfig config, const std::string& folder);

// Sets load_from to `path`, for --load-from. Other keys of a map stay.
void override_load_from(ConfigNode& root, const std::string& path);

}  // namespace duet
