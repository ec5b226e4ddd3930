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
#include "core/task.h"
#include "data/data_source.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "hooks/logger_hook.h"
#include "metrics/metric.h"

namespace duet {

namespace {

struct Type {
  std::optional<AnyOptions> options;
  bool built_in;
  std::any factory;  // of its kind's Registry; none of duet's own optimizers
};
using Types = std::map<std::string, Type>;

struct Kinds {
  std::map<std::string, Types> types;
  enum class State { kEmpty, kFilling, kFilled } state = State::kEmpty;  // with duet's own types
};

Kinds& kinds() {
  static Kinds kinds;
  if (kinds.state == Kinds::State::kEmpty) {
    kinds.state = Kinds::State::kFilling;
    add_builtin_types();  // by way of register_model and the others, which come back here
    for (const std::string& type : OptimizerOptions::built_in_types()) {
      kinds.types["optimizer"][type] = {OptimizerOptions::of_type(type), true, {}};  // read as their fields say
    }
    kinds.state = Kinds::State::kFilled;
  }
  return kinds;
}

const Type* find_type(const std::string& kind, const std::string& type) {
  const Types& types = kinds().types[kind];
  const auto found = types.find(type);
  return found == types.end() ? nullptr : &found->second;
}

// Other names that a config may give in the same place.
std::vector<std::string> names_beside(const std::string& kind) {
  if (kind == "schedule") return builtin_schedules();
  if (kind == "sampler") return builtin_samplers();
  if (kind == "loader") return {"default"};
  return kind == "source" ? registered("dataset") : std::vector<std::string>();
}

std::optional<int> read_priority(const ConfigNode& node) {
  const std::optional<std::string> text = node.find<std::string>("priority");
  if (!text) return std::nullopt;
  if (const std::optional<int> priority = parse_priority(*text)) return priority;
  node.fail_value("priority", "a number from 0 to 100 or a name; " + known_and_nearest(*text, priority_names()));
}

}  // namespace

template <class Product, class... Context>
void Registry<Product, Context...>::operator()(const std::string& name, Factory factory,
                                               std::optional<AnyOptions> options) const {
  if (name.empty() || !factory) {
    throw ConfigError(c10::str("[Registry] found a ", kind_, " '", name, "' without name or factory, expected both"));
  }
  const std::vector<std::string> beside = names_beside(kind_);
  if (find_type(kind_, name) != nullptr || std::ranges::find(beside, name) != beside.end()) {
    throw ConfigError(
        c10::str("[Registry] the ", kind_, " type '", name, "' is registered twice; choose another name"));
  }
  kinds().types[kind_][name] = {std::move(options), kinds().state == Kinds::State::kFilling, std::move(factory)};
}

template <class Product, class... Context>
auto Registry<Product, Context...>::find(const std::string& name) const -> const Factory* {
  const Type* type = find_type(kind_, name);
  return type == nullptr ? nullptr : std::any_cast<Factory>(&type->factory);
}

template <class Product, class... Context>
auto Registry<Product, Context...>::named_by(const ConfigNode& node, const char* key,
                                             const std::string& otherwise) const -> const Factory& {
  const bool is_word = node.kind() == ConfigNode::Kind::kValue;
  const std::string name = is_word             ? node.text()
                           : otherwise.empty() ? node.need<std::string>(key)
                                               : node.read<std::string>(key, otherwise);
  if (const Factory* found = find(name)) return *found;
  node.fail_value(is_word ? "" : key,
                  c10::str("a registered ", kind_, "; ", known_and_nearest(name, registered(kind_))));
}

template <class Product, class... Context>
Product Registry<Product, Context...>::make(ConfigNode node, Context... context, const std::string& otherwise) const {
  const Factory& factory = named_by(node, "type", otherwise);
  const bool is_word = node.kind() == ConfigNode::Kind::kValue;
  ConfigNode keys = is_word ? ConfigNode::parse_text("{}", node.origin()) : node;
  Product made{};
  node.located([&] { made = factory(keys, context...); });
  if constexpr (requires { !made; }) {
    if (!made) node.fail(is_word ? "" : "type", c10::str("gave no ", kind_, "; let its factory return one"));
  }
  if (!is_word) node.reject_unknown();
  return made;
}

template class Registry<std::unique_ptr<Task>, ModelContext&>;
template class Registry<std::shared_ptr<const Dataset>, const DatasetUse&>;
template class Registry<std::unique_ptr<DataSource>, SourceContext&>;
template class Registry<std::unique_ptr<Sampler>, SamplerContext&>;
template class Registry<std::unique_ptr<DataSource>, LoaderContext&>;
template class Registry<std::unique_ptr<LogSink>>;
template class Registry<std::unique_ptr<const Transform>>;
template class Registry<std::unique_ptr<Metric>>;
template class Registry<std::unique_ptr<Hook>, HookContext&>;
template class Registry<OptimizerKind>;
template class Registry<ScheduleFormulaFn>;
template class Registry<ParamGroupsFn>;

std::vector<std::string> registered(const std::string& kind) { return keys_in(kinds().types[kind]); }

const AnyOptions* options_of(const std::string& kind, const std::string& type) {
  const Type* found = find_type(kind, type);
  return found == nullptr || !found->options ? nullptr : &*found->options;
}

bool is_built_in(const std::string& kind, const std::string& type) {
  const Type* found = find_type(kind, type);
  return found != nullptr && found->built_in;
}

std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context) { return register_model.make(node, context); }

std::shared_ptr<const Dataset> make_dataset(ConfigNode node, const DatasetUse& use) {
  DatasetAdditions additions = read_dataset_additions(node);
  return with_additions(register_dataset.make(node, use), std::move(additions), node);
}

bool is_source(const ConfigNode& node) { return register_source.find(node.need<std::string>("type")) != nullptr; }

std::unique_ptr<DataSource> make_source(ConfigNode node, SourceContext context) {
  DatasetAdditions additions = read_dataset_additions(node);
  return with_additions(register_source.make(node, context), std::move(additions), node, context);
}

void check_dataset(ConfigNode node) {
  if (is_source(node)) return node.check_later();  // it is asked when it is built
  register_dataset.named_by(node);
  const AnyOptions* options = options_of("dataset", node.need<std::string>("type"));
  if (options == nullptr) return;  // its keys may mean anything
  AnyOptions values = *options;
  read_dataset_additions(node);
  if (node.has("dataset")) check_dataset(node.child("dataset"));
  for (const ConfigNode& item : node.list("datasets")) check_dataset(item);
  node.child("arrays").check_later();
  read_fields(node, values.fields(), values.mutable_data());
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

ConfiguredHook make_hook(ConfigNode node, HookContext context, const std::string& type) {
  const std::optional<int> priority = read_priority(node);
  return {register_hook.make(node, context, type), priority};
}

OptimizerOptions make_optimizer(ConfigNode node) {
  const std::string type = node.read_choice("type", "AdamW", registered("optimizer"));
  OptimizerOptions options;
  node.located([&] {
    if (is_built_in("optimizer", type)) {
      options = OptimizerOptions::of_type(type);
      read_fields(node, options.fields(), options.mutable_data());
    } else {
      OptimizerKind kind = register_optimizer.named_by(node, "type", type)(node);
      if (kind.name.empty()) kind.name = type;
      options = OptimizerOptions(std::make_shared<const OptimizerKind>(std::move(kind)));
    }
    options.validate();
  });
  return options;
}

ParamGroupsFn make_param_groups(const ConfigNode& optim_wrapper) {
  ConfigNode paramwise_cfg = optim_wrapper.child("paramwise_cfg");
  return register_optim_wrapper_constructor.named_by(optim_wrapper, "constructor",
                                                     "DefaultOptimWrapperConstructor")(paramwise_cfg);
}

ScheduleFormulaFn make_schedule_formula(ConfigNode node, const std::string& name) {
  const auto* factory = register_schedule.find(name);
  if (factory == nullptr) return {};
  ScheduleFormulaFn formula;
  node.located([&] { formula = (*factory)(node); });
  if (!formula) node.fail("type", "gave no formula; let its factory return one");
  return formula;
}

}  // namespace duet
