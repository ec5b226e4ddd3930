#include "cli/registry.h"
#include <filesystem>
#include <map>
#include <system_error>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/hook_config.h"
#include "cli/registry_table.h"
#include "core/hook.h"
#include "core/task.h"
#include "data/dataset.h"
#include "metrics/metric.h"

namespace duet {

namespace {

FactoryTable<ModelFactory>& models() {
  static FactoryTable<ModelFactory> table;
  return table;
}

FactoryTable<DatasetFactory>& datasets() {
  static FactoryTable<DatasetFactory> table;
  return table;
}

FactoryTable<HookFactory>& hooks() {
  static FactoryTable<HookFactory> table;
  return table;
}

FactoryTable<MetricFactory>& metrics() {
  static FactoryTable<MetricFactory> table;
  return table;
}

template <class Factory>
const Registered<Factory>& find(const FactoryTable<Factory>& table, const ConfigNode& node, const char* kind,
                                const std::string& otherwise = "") {
  const std::string type =
      otherwise.empty() ? node.need<std::string>("type") : node.read<std::string>("type", otherwise);
  const auto found = table.find(type);
  if (found != table.end()) return found->second;
  node.fail_value("type", c10::str("a registered ", kind, "; ", known_and_nearest(type, names_of(table))));
}

}  // namespace

void register_model(const std::string& name, ModelFactory factory, std::optional<AnyOptions> options) {
  add_factory(models(), "model", name, std::move(factory), std::move(options));
}

void register_dataset(const std::string& name, DatasetFactory factory, std::optional<AnyOptions> options) {
  add_factory(datasets(), "dataset", name, std::move(factory), std::move(options));
}

void register_hook(const std::string& name, HookFactory factory, std::optional<AnyOptions> options) {
  add_factory(hooks(), "hook", name, std::move(factory), std::move(options));
}

void register_metric(const std::string& name, MetricFactory factory, std::optional<AnyOptions> options) {
  add_factory(metrics(), "metric", name, std::move(factory), std::move(options));
}

const AnyOptions* options_of(const std::string& kind, const std::string& type) {
  if (kind == "model") return options_in(models(), type);
  if (kind == "dataset") return options_in(datasets(), type);
  return kind == "metric" ? options_in(metrics(), type) : options_in(hooks(), type);
}

std::vector<std::string> registered(const std::string& kind) {
  if (kind == "model") return names_of(models());
  if (kind == "dataset") return names_of(datasets());
  if (kind == "metric") return names_of(metrics());
  if (kind == "hook") return names_of(hooks());
  throw ConfigError("[Registry] found the kind '" + kind + "', expected model, dataset, metric or hook");
}

std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context) {
  std::unique_ptr<Task> task;
  const auto& [factory, options] = find(models(), node, "model");
  node.located([&] { task = factory(node, context); });
  if (task == nullptr) node.fail("type", "gave no task; let its factory return one");
  node.reject_unknown();
  return task;
}

std::shared_ptr<const Dataset> make_dataset(ConfigNode node) {
  std::shared_ptr<const Dataset> dataset;
  const auto& [factory, options] = find(datasets(), node, "dataset");
  node.located([&] { dataset = factory(node); });
  if (dataset == nullptr) node.fail("type", "gave no dataset; let its factory return one");
  node.reject_unknown();
  return dataset;
}

void check_dataset(ConfigNode node) {
  const auto& [factory, options] = find(datasets(), node, "dataset");
  if (!options) return;  // its keys may mean anything
  AnyOptions values = *options;
  read_fields(node, values.fields(), values.mutable_data(), Ranges::kLeftToCaller);
  node.reject_unknown();
  node.located([&] { values.check(); });
  for (const char* key : {"path", "images", "labels"}) {
    const ConfigNode file = node.child(key);
    std::error_code ignored;
    if (file.text().empty() || std::filesystem::exists(file.text(), ignored)) continue;
    throw DataError(c10::str("[Config] ", file.origin(), ": ", file.path(), " is '", file.text(),
                             "', expected a file that exists; correct it"));
  }
}

ConfiguredHook make_hook(ConfigNode node, HookContext context, const std::string& type) {
  ConfiguredHook made;
  const auto& [factory, options] = find(hooks(), node, "hook", type);
  made.priority = read_priority(node);
  node.located([&] { made.hook = factory(node, context); });
  if (made.hook == nullptr) node.fail("type", "gave no hook; let its factory return one");
  node.reject_unknown();
  return made;
}

std::unique_ptr<Metric> make_metric(ConfigNode node) {
  std::unique_ptr<Metric> metric;
  const auto& [factory, options] = find(metrics(), node, "metric");
  node.located([&] { metric = factory(node); });
  if (metric == nullptr) node.fail("type", "gave no metric; let its factory return one");
  node.reject_unknown();
  return metric;
}

}  // namespace duet
