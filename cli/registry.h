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
#include "../optim/schedules/schedule.h"
#include "config/config_options.h"

namespace duet {

class Dataset;
class HookList;
class Metric;
class Task;

// What a model may ask for while it is built.
struct ModelContext {
  const Dataset* train_data = nullptr;  // null if the config has no data.train
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

// A hook and the key `priority` beside it, which takes the place of the hook's own.
struct ConfiguredHook {
  std::unique_ptr<Hook> hook;
  std::optional<int> priority;
};

// A factory reads its options from the node under `model`, `data.*`, `evaluator.*` or `custom_hooks.*`; keys that it
// does not read are errors.
using ModelFactory = std::function<std::unique_ptr<Task>(ConfigNode&, ModelContext&)>;
using DatasetFactory = std::function<std::shared_ptr<const Dataset>(ConfigNode&)>;
using MetricFactory = std::function<std::unique_ptr<Metric>(ConfigNode&)>;
using HookFactory = std::function<std::unique_ptr<Hook>(ConfigNode&, HookContext&)>;

// Make `type: <name>` known to the program. Call them before run_cli(). Throw ConfigError if the name is taken.
// `options` describe the keys that the factory reads, for `duet help`: AnyOptions(MyOptions()). Without them it lists
// none.
void register_model(const std::string& name, ModelFactory factory, std::optional<AnyOptions> options = {});
void register_dataset(const std::string& name, DatasetFactory factory, std::optional<AnyOptions> options = {});
void register_hook(const std::string& name, HookFactory factory, std::optional<AnyOptions> options = {});
void register_metric(const std::string& name, MetricFactory factory, std::optional<AnyOptions> options = {});

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

// The names registered as "model", "dataset", "metric" or "hook".
std::vector<std::string> registered(const std::string& kind);
// The description that such a type came with; null if it came with none.
const AnyOptions* options_of(const std::string& kind, const std::string& type);

// SmallCnn, Mlp, Gpt, torchscript; FashionMnist, Text, Safetensors; all hooks; Accuracy, IoUMetric, F1, ... Does
// nothing the second time; run_cli() calls it.
void register_builtin_types();

// Build what the node's `type` says. Throw ConfigError for an unknown type (known names, nearest one) and unknown keys.
std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context);
std::shared_ptr<const Dataset> make_dataset(ConfigNode node);
// Checks what make_dataset() would read, without reading data: the type, and for a built-in one keys and files.
void check_dataset(ConfigNode node);
// `type` stands for a node that names none; empty: it must. The key `priority` is read here for every hook.
ConfiguredHook make_hook(ConfigNode node, HookContext context, const std::string& type = "");
std::unique_ptr<Metric> make_metric(ConfigNode node);

}  // namespace duet
