#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include "../core/hook.h"
#include "../data/data_loader.h"
#include "../optim/groups/param_group.h"
#include "../optim/optimizers/optimizer_kind.h"
#include "../optim/optimizers/optimizer_options.h"
#include "../optim/schedules/schedule.h"
#include "config/config_options.h"

namespace duet {

class HookList;
class LogSink;
class Metric;
class Task;
class Transform;

// What a model may ask for while it is built.
struct ModelContext {
  const Dataset* train_data = nullptr;  // null if the config has no data.train
};

// What decides which samples come next.
struct SamplerContext {
  const Dataset& dataset;
  bool shuffle = false;
  uint64_t seed = 0;
};

// What a loader is built of.
struct LoaderContext {
  std::shared_ptr<const Dataset> dataset;
  std::unique_ptr<Sampler> sampler;  // gives this process its part
  DataLoaderOptions options;
};

// What a stream may ask for while it is built.
struct SourceContext {
  int64_t batch_size = 1;  // of this process
  uint64_t seed = 0;
  int64_t rank = 0, world_size = 1;
};

// What a hook may ask for while it is built.
struct HookContext {
  const HookList& hooks;               // those of the run so far
  int64_t planned_steps = 0;           // of the whole run; 0: unknown
  int64_t steps_per_epoch = 0;         // 0: unknown
  std::vector<Schedule> schedules{};   // param_scheduler, in steps where it is to be converted
  std::vector<std::string> metrics{};  // what a validation reports, in order; empty: there will be none
  bool validates = false;              // there is data.val
  std::string work_dir{};
  bool scratch = false;    // work_dir is thrown away after the run: write nothing outside of it
  bool evaluates = false;  // nothing is trained: a checkpoint is tested, or predicts
  std::string output{};    // where predictions go; empty: as the hook has it
  bool dry_run = false;    // a few batches stand for all: what acts on some of them acts on each
};

// A factory reads its options from the node that names its type; keys that it does not read are errors.
using ModelFactory = std::function<std::unique_ptr<Task>(ConfigNode&, ModelContext&)>;
using DatasetFactory = std::function<std::shared_ptr<const Dataset>(ConfigNode&, const DatasetUse&)>;
using SamplerFactory = std::function<std::unique_ptr<Sampler>(ConfigNode&, SamplerContext&)>;
using LoaderFactory = std::function<std::unique_ptr<DataSource>(ConfigNode&, LoaderContext&)>;
using SourceFactory = std::function<std::unique_ptr<DataSource>(ConfigNode&, SourceContext&)>;
using SinkFactory = std::function<std::unique_ptr<LogSink>(ConfigNode&)>;
using TransformFactory = std::function<std::unique_ptr<const Transform>(ConfigNode&)>;
using MetricFactory = std::function<std::unique_ptr<Metric>(ConfigNode&)>;
using HookFactory = std::function<std::unique_ptr<Hook>(ConfigNode&, HookContext&)>;
using OptimizerFactory = std::function<OptimizerKind(ConfigNode&)>;
// What a schedule has in any case (param_name, begin, end, by_epoch, convert_to_iter_based) is read already.
using ScheduleFormulaFn = std::function<double(const ScheduleStep& at)>;
using ScheduleFactory = std::function<ScheduleFormulaFn(ConfigNode&)>;
// Reads `paramwise_cfg` and returns what puts a task's parameters into groups; an empty function means one group.
using OptimWrapperConstructor = std::function<ParamGroupsFn(const ConfigNode& paramwise_cfg)>;

// Make `type: <name>` known to the program, or `optim_wrapper: {constructor: <name>}`. Call them before run_cli().
// Throw ConfigError if the name is taken. `options` describe the keys that the factory reads, for `duet help`:
// AnyOptions(MyOptions()). Without them it lists none.
void register_model(const std::string& name, ModelFactory factory, std::optional<AnyOptions> options = {});
void register_dataset(const std::string& name, DatasetFactory factory, std::optional<AnyOptions> options = {});
// From a factory that does not ask what the dataset is read for.
void register_dataset(const std::string& name, std::function<std::shared_ptr<const Dataset>(ConfigNode&)> factory,
                      std::optional<AnyOptions> options = {});
// A stream: data that comes as batches, without numbers, in the place of a dataset: data.train: {type: <name>}.
void register_source(const std::string& name, SourceFactory factory, std::optional<AnyOptions> options = {});
// data.train: {sampler: <name>}, or {sampler: {type: <name>, ...}}. It gives the order of all ranks; each reads its
// part.
void register_sampler(const std::string& name, SamplerFactory factory, std::optional<AnyOptions> options = {});
// What reads batches of a dataset in the place of DataLoader: data.train: {loader: <name>}, or {loader: {type: <name>,
// ...}}.
void register_loader(const std::string& name, LoaderFactory factory, std::optional<AnyOptions> options = {});
// A place that log lines go to: default_hooks: {logger: {sinks: [<name>]}}, or [{type: <name>, ...}].
void register_sink(const std::string& name, SinkFactory factory, std::optional<AnyOptions> options = {});
void register_transform(const std::string& name, TransformFactory factory, std::optional<AnyOptions> options = {});
void register_metric(const std::string& name, MetricFactory factory, std::optional<AnyOptions> options = {});
void register_hook(const std::string& name, HookFactory factory, std::optional<AnyOptions> options = {});
void register_optimizer(const std::string& name, OptimizerFactory factory, std::optional<AnyOptions> options = {});
void register_schedule(const std::string& name, ScheduleFactory factory, std::optional<AnyOptions> options = {});
void register_optim_wrapper_constructor(const std::string& name, OptimWrapperConstructor constructor,
                                        std::optional<AnyOptions> options = {});

template <class Factory>
concept MakesHook = !std::is_same_v<Factory, HookFactory> && std::is_invocable_v<Factory&, ConfigNode&, HookContext&>;

// From a factory that returns the hook's own type, the points that the type leaves empty are known (see as_hook).
template <MakesHook Factory>
void register_hook(const std::string& name, Factory factory, std::optional<AnyOptions> options = {}) {
  HookFactory typed = [factory = std::move(factory)](ConfigNode& node, HookContext& context) mutable {
    return as_hook(factory(node, context));
  };
  register_hook(name, std::move(typed), std::move(options));
}

// The names registered as "model", "dataset", "source", "sampler", "loader", "transform", "metric", "hook", "sink",
// "optimizer", "schedule" or "constructor". Those of duet are among them, but for samplers, sinks and schedules.
std::vector<std::string> registered(const std::string& kind);
// The description that such a type came with; null if it came with none, or there is no such type.
const AnyOptions* options_of(const std::string& kind, const std::string& type);
// Whether it is one of duet's own.
bool is_built_in(const std::string& kind, const std::string& type);

// Build what the node's `type` says. Throw ConfigError for an unknown type (known names, nearest one) and unknown keys.
std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context);
std::shared_ptr<const Dataset> make_dataset(ConfigNode node);
std::shared_ptr<const Dataset> make_dataset(ConfigNode node, const DatasetUse& use);
// Checks what make_dataset() would read, without reading data: the type, and for a built-in one keys and files.
void check_dataset(ConfigNode node);
// Whether the node's type is a source's.
bool is_source(const ConfigNode& node);
std::unique_ptr<DataSource> make_source(ConfigNode node, SourceContext context);
// What `sampler` in the map `data` says: a name, or a map with a type.
std::unique_ptr<Sampler> make_sampler(ConfigNode data, SamplerContext context);
// What `loader` in the map `data` says, likewise.
std::unique_ptr<DataSource> make_loader(ConfigNode data, LoaderContext context);
std::unique_ptr<LogSink> make_sink(ConfigNode node);
std::unique_ptr<const Transform> make_transform(ConfigNode node);
std::unique_ptr<Metric> make_metric(ConfigNode node);

// A hook and the key `priority` beside it, which takes the place of the hook's own.
struct ConfiguredHook {
  std::unique_ptr<Hook> hook;
  std::optional<int> priority;
};
// `type` stands for a node that names none; empty: it must. The key `priority` is read here for every hook.
ConfiguredHook make_hook(ConfigNode node, HookContext context, const std::string& type = "");

// `optim_wrapper.optimizer`; AdamW if it names none.
OptimizerOptions make_optimizer(ConfigNode node);
// What `constructor` and `paramwise_cfg` of the node `optim_wrapper` say.
ParamGroupsFn make_param_groups(const ConfigNode& optim_wrapper);
// Of a schedule of the user's own; nothing if none of that name is registered.
ScheduleFormulaFn make_schedule_formula(ConfigNode node, const std::string& name);

}  // namespace duet
