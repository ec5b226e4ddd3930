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
  std::string work_dir{};
  bool scratch = false;    // work_dir is thrown away after the run: write nothing outside of it
  bool evaluates = false;  // nothing is trained: a checkpoint is tested, or predicts
  std::string output{};    // where predictions go; empty: as the hook has it
  // The training data once more; empty where nothing is trained.
  std::function<std::unique_ptr<DataSource>()> training_data{};
  bool dry_run = false;  // a few batches stand for all: what acts on some of them acts on each
};

// The types of one kind, "model" or "hook", by their names: register_model("MyNet", factory, AnyOptions(MyOptions()))
// makes `type: MyNet` known to the program. A factory reads its options from the node that names its type; keys that it
// does not read are errors. `options` describe these keys for `duet help`, which lists none without them.
template <class Product, class... Context>
class Registry {
 public:
  using Factory = std::function<Product(ConfigNode&, Context...)>;

  explicit constexpr Registry(const char* kind) : kind_(kind) {}
  // Call it before run_cli(). Throws ConfigError if the name is taken.
  void operator()(const std::string& name, Factory factory, std::optional<AnyOptions> options = {}) const;
  // Null if there is none of that name.
  const Factory* find(const std::string& name) const;
  // That which the key of the node names. Throws ConfigError if there is none: known names, the nearest one.
  const Factory& named_by(const ConfigNode& node, const char* key = "type", const std::string& otherwise = "") const;
  // What the type of the node makes, or the one that it names in a single word. Throws ConfigError for a type or key
  // that is not known, and if nothing is made. `otherwise` stands for a node without a type; empty: it must have one.
  Product make(ConfigNode node, Context... context, const std::string& otherwise = "") const;

 private:
  const char* kind_;
};

using ModelRegistry = Registry<std::unique_ptr<Task>, ModelContext&>;
using DatasetRegistry = Registry<std::shared_ptr<const Dataset>, const DatasetUse&>;
using SourceRegistry = Registry<std::unique_ptr<DataSource>, SourceContext&>;
using SamplerRegistry = Registry<std::unique_ptr<Sampler>, SamplerContext&>;
using LoaderRegistry = Registry<std::unique_ptr<DataSource>, LoaderContext&>;
using SinkRegistry = Registry<std::unique_ptr<LogSink>>;
using TransformRegistry = Registry<std::unique_ptr<const Transform>>;
using MetricRegistry = Registry<std::unique_ptr<Metric>>;
using HookRegistry = Registry<std::unique_ptr<Hook>, HookContext&>;
using OptimizerRegistry = Registry<OptimizerKind>;
// What a schedule has in any case (param_name, begin, end, by_epoch, convert_to_iter_based) is read already.
using ScheduleFormulaFn = std::function<double(const ScheduleStep& at)>;
using ScheduleRegistry = Registry<ScheduleFormulaFn>;
// Reads `paramwise_cfg` and returns what puts a task's parameters into groups; an empty function means one group.
using ConstructorRegistry = Registry<ParamGroupsFn>;

inline constexpr ModelRegistry register_model("model");
// A stream: data that comes as batches, without numbers, in the place of a dataset: data.train: {type: <name>}.
inline constexpr SourceRegistry register_source("source");
// data.train: {sampler: <name>}, or {sampler: {type: <name>, ...}}. It gives the order of all ranks; each reads its
// part.
inline constexpr SamplerRegistry register_sampler("sampler");
// What reads batches of a dataset in the place of DataLoader: data.train: {loader: <name>}, or {loader: {type: <name>,
// ...}}.
inline constexpr LoaderRegistry register_loader("loader");
// A place that log lines go to: default_hooks: {logger: {sinks: [<name>]}}, or [{type: <name>, ...}].
inline constexpr SinkRegistry register_sink("sink");
inline constexpr TransformRegistry register_transform("transform");
inline constexpr MetricRegistry register_metric("metric");
inline constexpr OptimizerRegistry register_optimizer("optimizer");
inline constexpr ScheduleRegistry register_schedule("schedule");
// optim_wrapper: {constructor: <name>}.
inline constexpr ConstructorRegistry register_optim_wrapper_constructor("constructor");

// Also from a factory that does not ask what the dataset is read for.
struct DatasetRegistration : DatasetRegistry {
  using DatasetRegistry::DatasetRegistry;
  using DatasetRegistry::operator();
  void operator()(const std::string& name, std::function<std::shared_ptr<const Dataset>(ConfigNode&)> factory,
                  std::optional<AnyOptions> options = {}) const {
    const auto make = [factory = std::move(factory)](ConfigNode& node, const DatasetUse&) { return factory(node); };
    (*this)(name, Factory(make), std::move(options));
  }
};
inline constexpr DatasetRegistration register_dataset("dataset");

// From a factory that returns the hook's own type, the points that the type leaves empty are known (see as_hook).
struct HookRegistration : HookRegistry {
  using HookRegistry::HookRegistry;
  template <class Typed>
    requires std::is_invocable_v<Typed&, ConfigNode&, HookContext&>
  void operator()(const std::string& name, Typed factory, std::optional<AnyOptions> options = {}) const {
    HookRegistry::operator()(
        name,
        [factory = std::move(factory)](ConfigNode & node, HookContext & context) mutable {
          return as_hook(factory(node, context));
        },
        std::move(options));
  }
};
inline constexpr HookRegistration register_hook("hook");

// The names registered as "model", "dataset" or another kind above. Those of duet are among them, but for samplers,
// sinks and schedules.
std::vector<std::string> registered(const std::string& kind);
// The description that such a type came with; null if it came with none, or there is no such type.
const AnyOptions* options_of(const std::string& kind, const std::string& type);
// Whether it is one of duet's own.
bool is_built_in(const std::string& kind, const std::string& type);

// Build what the node's `type` says. Throw ConfigError for an unknown type (known names, nearest one) and unknown keys.
std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context);
std::shared_ptr<const Dataset> make_dataset(ConfigNode node, const DatasetUse& use = {});
// Checks what make_dataset() would read, without reading data: the type, and for a built-in one keys and files.
void check_dataset(ConfigNode node);
// Whether the node's type is a source's.
bool is_source(const ConfigNode& node);
std::unique_ptr<DataSource> make_source(ConfigNode node, SourceContext context);

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
