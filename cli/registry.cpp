#include "cli/registry.h"
#include <algorithm>
#include <any>
#include <filesystem>
#include <map>
#include <system_error>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/builtin_types.h"
#include "cli/config/dataset_config.h"
#include "cli/config/run_config.h"
#include "cli/config/schedule_config.h"
#include "core/hook.h"
#include "core/task.h"
#include "data/data_source.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "hooks/logger_hook.h"
#include "metrics/metric.h"

namespace duet {

namespace {

struct Type {
  std::any factory;
  std::optional<AnyOptions> options;
  bool built_in;
};
using Types = std::map<std::string, Type>;

struct Registry {
  std::map<std::string, Types> kinds = {{"model", {}},  {"dataset", {}},   {"source", {}},   {"sampler", {}},
                                        {"loader", {}}, {"transform", {}}, {"metric", {}},   {"hook", {}},
                                        {"sink", {}},   {"optimizer", {}}, {"schedule", {}}, {"constructor", {}}};
  enum class State { kEmpty, kFilling, kFilled } state = State::kEmpty;  // with duet's own types
};

Registry& registry() {
  static Registry registry;
  if (registry.state == Registry::State::kEmpty) {
    registry.state = Registry::State::kFilling;
    add_builtin_types();  // by way of register_model() and the others, which come back here
    for (const std::string& type : OptimizerOptions::built_in_types()) {
      registry.kinds["optimizer"][type] = {{}, OptimizerOptions::of_type(type), true};  // read as their fields say
    }
    registry.state = Registry::State::kFilled;
  }
  return registry;
}

const Types& types_of(const std::string& kind) {
  const auto found = registry().kinds.find(kind);
  if (found != registry().kinds.end()) return found->second;
  throw ConfigError("[Registry] found the kind '" + kind + "', expected model, dataset, source, sampler, loader, " +
                    "transform, metric, hook, sink, optimizer, schedule or constructor");
}

const Type* find(const std::string& kind, const std::string& type) {
  const Types& types = types_of(kind);
  const auto found = types.find(type);
  return found == types.end() ? nullptr : &found->second;
}

// Throws ConfigError if the name is empty or taken, or the factory is empty.
template <class Factory>
void add(const std::string& kind, const std::string& name, Factory factory, std::optional<AnyOptions> options) {
  if (name.empty() || !factory) {
    throw ConfigError(c10::str("[Registry] found a ", kind, " '", name, "' without name or factory, expected both"));
  }
  const std::vector<std::string> taken = kind == "schedule" ? builtin_schedules() : std::vector<std::string>();
  if (find(kind, name) != nullptr || std::find(taken.begin(), taken.end(), name) != taken.end()) {
    throw ConfigError(c10::str("[Registry] the ", kind, " type '", name, "' is registered twice; choose another name"));
  }
  const bool built_in = registry().state == Registry::State::kFilling;
  registry().kinds[kind][name] = {std::move(factory), std::move(options), built_in};
}

// Of the type under `key`; `otherwise` stands for a node that names none; empty: it must.
template <class Factory>
const Factory& factory_of(const ConfigNode& node, const std::string& kind, const std::string& key = "type",
                          const std::string& otherwise = "") {
  const std::string type = otherwise.empty() ? node.need<std::string>(key) : node.read<std::string>(key, otherwise);
  if (const Type* found = find(kind, type)) return std::any_cast<const Factory&>(found->factory);
  node.fail_value(key, c10::str("a registered ", kind, "; ", known_and_nearest(type, registered(kind))));
}

// What `make` gives for a node, whose place its errors name.
template <class Make>
auto made_of(const ConfigNode& node, const char* what, Make make) {
  decltype(make()) made{};
  node.located([&] { made = make(); });
  if (!made) node.fail("type", c10::str("gave no ", what, "; let its factory return one"));
  return made;
}

template <class Make>
auto all_made_of(const ConfigNode& node, const char* what, Make make) {
  auto made = made_of(node, what, std::move(make));
  node.reject_unknown();
  return made;
}

// What a node says in one word or as a map: the name of a type without keys, or its type and keys.
template <class Factory, class Make>
auto named_or_map(const ConfigNode& node, const char* kind, const Make& make) {
  if (node.kind() == ConfigNode::Kind::kMap) {
    ConfigNode keys = node;
    const auto& factory = factory_of<Factory>(node, kind);
    return all_made_of(node, kind, [&] { return make(factory, keys); });
  }
  const Type* found = find(kind, node.text());
  if (found == nullptr) {
    node.fail_value("", c10::str("a registered ", kind, "; ", known_and_nearest(node.text(), registered(kind))));
  }
  ConfigNode no_keys = ConfigNode::parse_text("{}", node.origin());
  return made_of(node, kind, [&] { return make(std::any_cast<const Factory&>(found->factory), no_keys); });
}

std::optional<int> read_priority(const ConfigNode& node) {
  const std::optional<std::string> text = node.find<std::string>("priority");
  if (!text) return std::nullopt;
  if (const std::optional<int> priority = parse_priority(*text)) return priority;
  node.fail_value("priority", "a number from 0 to 100 or a name; " + known_and_nearest(*text, priority_names()));
}

}  // namespace

void register_model(const std::string& name, ModelFactory factory, std::optional<AnyOptions> options) {
  add("model", name, std::move(factory), std::move(options));
}

void register_dataset(const std::string& name, DatasetFactory factory, std::optional<AnyOptions> options) {
  add("dataset", name, std::move(factory), std::move(options));
}

void register_dataset(const std::string& name, std::function<std::shared_ptr<const Dataset>(ConfigNode&)> factory,
                      std::optional<AnyOptions> options) {
  const auto make = [factory = std::move(factory)](ConfigNode& node, const DatasetUse&) { return factory(node); };
  register_dataset(name, DatasetFactory(make), std::move(options));
}

void register_source(const std::string& name, SourceFactory factory, std::optional<AnyOptions> options) {
  if (find("dataset", name) != nullptr) {
    throw ConfigError("[Registry] the source type '" + name + "' is a dataset's name, too; choose another name");
  }
  add("source", name, std::move(factory), std::move(options));
}

void register_sampler(const std::string& name, SamplerFactory factory, std::optional<AnyOptions> options) {
  for (const std::string& taken : builtin_samplers()) {
    if (taken == name) throw ConfigError("[Registry] the sampler '" + name + "' is duet's own; choose another name");
  }
  add("sampler", name, std::move(factory), std::move(options));
}

void register_loader(const std::string& name, LoaderFactory factory, std::optional<AnyOptions> options) {
  require<ConfigError>(name != "default", "[Registry] the loader 'default' is duet's own; choose another name");
  add("loader", name, std::move(factory), std::move(options));
}

void register_sink(const std::string& name, SinkFactory factory, std::optional<AnyOptions> options) {
  add("sink", name, std::move(factory), std::move(options));
}

void register_transform(const std::string& name, TransformFactory factory, std::optional<AnyOptions> options) {
  add("transform", name, std::move(factory), std::move(options));
}

void register_metric(const std::string& name, MetricFactory factory, std::optional<AnyOptions> options) {
  add("metric", name, std::move(factory), std::move(options));
}

void register_hook(const std::string& name, HookFactory factory, std::optional<AnyOptions> options) {
  add("hook", name, std::move(factory), std::move(options));
}

void register_optimizer(const std::string& name, OptimizerFactory factory, std::optional<AnyOptions> options) {
  add("optimizer", name, std::move(factory), std::move(options));
}

void register_schedule(const std::string& name, ScheduleFactory factory, std::optional<AnyOptions> options) {
  add("schedule", name, std::move(factory), std::move(options));
}

void register_optim_wrapper_constructor(const std::string& name, OptimWrapperConstructor constructor,
                                        std::optional<AnyOptions> options) {
  add("constructor", name, std::move(constructor), std::move(options));
}

std::vector<std::string> registered(const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& entry : types_of(kind)) names.push_back(entry.first);
  return names;
}

const AnyOptions* options_of(const std::string& kind, const std::string& type) {
  const Type* found = find(kind, type);
  return found == nullptr || !found->options ? nullptr : &*found->options;
}

bool is_built_in(const std::string& kind, const std::string& type) {
  const Type* found = find(kind, type);
  return found != nullptr && found->built_in;
}

std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context) {
  const auto& factory = factory_of<ModelFactory>(node, "model");
  return all_made_of(node, "task", [&] { return factory(node, context); });
}

std::shared_ptr<const Dataset> make_dataset(ConfigNode node) { return make_dataset(std::move(node), {}); }

std::shared_ptr<const Dataset> make_dataset(ConfigNode node, const DatasetUse& use) {
  const auto& factory = factory_of<DatasetFactory>(node, "dataset");
  DatasetAdditions additions = read_dataset_additions(node);
  return with_additions(all_made_of(node, "dataset", [&] { return factory(node, use); }), std::move(additions), node);
}

bool is_source(const ConfigNode& node) { return find("source", node.need<std::string>("type")) != nullptr; }

std::unique_ptr<DataSource> make_source(ConfigNode node, SourceContext context) {
  const auto& factory = factory_of<SourceFactory>(node, "source");
  DatasetAdditions additions = read_dataset_additions(node);
  return with_additions(all_made_of(node, "source", [&] { return factory(node, context); }), std::move(additions), node,
                        context);
}

std::unique_ptr<Sampler> make_sampler(ConfigNode data, SamplerContext context) {
  return named_or_map<SamplerFactory>(data.child("sampler"), "sampler",
                                      [&](const auto& make, ConfigNode& keys) { return make(keys, context); });
}

std::unique_ptr<DataSource> make_loader(ConfigNode data, LoaderContext context) {
  return named_or_map<LoaderFactory>(data.child("loader"), "loader",
                                     [&](const auto& make, ConfigNode& keys) { return make(keys, context); });
}

std::unique_ptr<LogSink> make_sink(ConfigNode node) {
  return named_or_map<SinkFactory>(node, "sink", [](const auto& make, ConfigNode& keys) { return make(keys); });
}

std::unique_ptr<const Transform> make_transform(ConfigNode node) {
  const auto& factory = factory_of<TransformFactory>(node, "transform");
  return all_made_of(node, "transform", [&] { return factory(node); });
}

void check_dataset(ConfigNode node) {
  if (is_source(node)) return node.check_later();  // it is asked when it is built
  factory_of<DatasetFactory>(node, "dataset");
  const AnyOptions* options = options_of("dataset", node.need<std::string>("type"));
  if (options == nullptr) return;  // its keys may mean anything
  AnyOptions values = *options;
  read_dataset_additions(node);
  if (node.has("dataset")) check_dataset(node.child("dataset"));
  for (const ConfigNode& item : node.list("datasets")) check_dataset(item);
  node.child("arrays").check_later();
  read_fields(node, values.fields(), values.mutable_data(), Ranges::kLeftToCaller);
  node.reject_unknown();
  node.located([&] { values.check(); });
  for (const char* key : {"path", "images", "labels", "root", "masks", "manifest", "fit_on"}) {
    const ConfigNode file = node.child(key);
    std::error_code ignored;
    if (file.text().empty() || std::filesystem::exists(file.text(), ignored)) continue;
    throw DataError(c10::str("[Config] ", file.origin(), ": ", file.path(), " is '", file.text(),
                             "', expected a file that exists; correct it"));
  }
}

std::unique_ptr<Metric> make_metric(ConfigNode node) {
  const auto& factory = factory_of<MetricFactory>(node, "metric");
  return all_made_of(node, "metric", [&] { return factory(node); });
}

ConfiguredHook make_hook(ConfigNode node, HookContext context, const std::string& type) {
  const auto& factory = factory_of<HookFactory>(node, "hook", "type", type);
  const std::optional<int> priority = read_priority(node);
  return {all_made_of(node, "hook", [&] { return factory(node, context); }), priority};
}

OptimizerOptions make_optimizer(ConfigNode node) {
  const std::string type = node.read_choice("type", "AdamW", registered("optimizer"));
  OptimizerOptions options;
  node.located([&] {
    if (is_built_in("optimizer", type)) {
      options = OptimizerOptions::of_type(type);
      read_fields(node, options.fields(), options.mutable_data());
    } else {
      OptimizerKind kind = factory_of<OptimizerFactory>(node, "optimizer")(node);
      if (kind.name.empty()) kind.name = type;
      options = OptimizerOptions(std::make_shared<const OptimizerKind>(std::move(kind)));
    }
    options.validate();
  });
  return options;
}

ParamGroupsFn make_param_groups(const ConfigNode& optim_wrapper) {
  const auto& constructor = factory_of<OptimWrapperConstructor>(optim_wrapper, "constructor", "constructor",
                                                                "DefaultOptimWrapperConstructor");
  return constructor(optim_wrapper.child("paramwise_cfg"));
}

ScheduleFormulaFn make_schedule_formula(ConfigNode node, const std::string& name) {
  const Type* found = find("schedule", name);
  if (found == nullptr) return {};
  const auto& factory = std::any_cast<const ScheduleFactory&>(found->factory);
  return made_of(node, "formula", [&] { return factory(node); });
}

}  // namespace duet
