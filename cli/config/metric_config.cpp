#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "core/trainer.h"
#include "metrics/class_metric.h"
#include "metrics/metric.h"

namespace duet {

namespace {

std::string read_prefix(const ConfigNode& node) {
  const std::string prefix = node.find<std::string>("prefix").value_or("");
  if (!prefix.empty() && (prefix.front() == '/' || prefix.back() == '/')) {
    node.fail_value("prefix", "a word such as val; the slash is put in between");
  }
  return prefix;
}

// The mean loss, which every evaluation reports without being asked.
bool is_plain_loss(const MetricConfig& metric) {
  return metric.prefix.empty() && metric.node.need<std::string>("type") == "MeanLoss";
}

// Whether its classes have no names, and could have some.
bool lacks_class_names(const MetricConfig& metric) {
  const AnyOptions* options = options_of("metric", metric.node.need<std::string>("type"));
  return options != nullptr && metric.node.child("class_names").is_empty() &&
         options->fields().find("class_names") != nullptr;
}

std::vector<MetricConfig> read_list_of_metrics(const std::vector<ConfigNode>& nodes) {
  std::vector<MetricConfig> metrics;
  std::map<std::string, std::string> reported_by;
  for (const ConfigNode& node : nodes) {
    node.need<std::string>("type");
    metrics.push_back({node, read_prefix(node)});
    if (!is_plain_loss(metrics.back())) reported_by.emplace("loss", "every evaluation");
    for (const std::string& name : metrics.back().names()) {
      const auto [other, fresh] = reported_by.emplace(name, node.path());
      if (fresh) continue;
      node.fail("prefix", "does not tell '" + name + "' from that of " + other->second + "; give one of them a prefix");
    }
  }
  return metrics;
}

// Says where in the config it is if the first batch does not fit it; labels may be wrong in any batch.
class ConfiguredMetric : public Metric {
 public:
  ConfiguredMetric(std::unique_ptr<Metric> metric, ConfigNode node)
      : metric_(std::move(metric)), node_(std::move(node)) {}

  std::vector<std::string> names() const override { return metric_->names(); }
  void reset() override { metric_->reset(); }
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override try {
    metric_->add(batch, outputs, weight);
    fits_ = true;
  } catch (const DataError& error) {
    if (fits_) throw;
    node_.located([&] { throw ConfigError(error.what()); });
  }
  MetricValues compute() const override { return metric_->compute(); }
  std::vector<at::Tensor> sums(at::Device device) override { return metric_->sums(device); }
  std::vector<at::Tensor*> rows() override { return metric_->rows(); }
  std::string text() const override { return metric_->text(); }

 private:
  std::unique_ptr<Metric> metric_;
  ConfigNode node_;
  bool fits_ = false;
};

}  // namespace

std::vector<std::string> MetricConfig::names() const {
  std::vector<std::string> names = register_metric.make(node)->names();
  for (std::string& name : names) name = prefix.empty() ? name : prefix + "/" + name;
  return names;
}

std::vector<MetricConfig> read_metrics(const ConfigNode& root) {
  const std::vector<ConfigNode> ours = root.one_or_list("evaluator"), mmengines = root.one_or_list("val_evaluator");
  if (root.child("evaluator").is_set() && root.child("val_evaluator").is_set()) {
    root.fail("val_evaluator", "is set beside evaluator, which is the same; remove one");
  }
  return read_list_of_metrics(root.child("val_evaluator").is_set() ? mmengines : ours);
}

std::vector<MetricConfig> read_test_metrics(const ConfigNode& root, const std::vector<MetricConfig>& otherwise) {
  const std::vector<ConfigNode> nodes = root.one_or_list("test_evaluator");
  return root.child("test_evaluator").is_set() ? read_list_of_metrics(nodes) : otherwise;
}

void name_classes(const std::vector<MetricConfig>& metrics, const std::vector<std::string>& names) {
  for (const MetricConfig& metric : metrics) {
    if (names.empty() || !lacks_class_names(metric)) continue;
    ConfigNode node = metric.node;
    if (node.find<int64_t>("num_classes") == std::ssize(names)) {
      node.override_with("class_names=" + yaml_text(names), "the training data");
    }
  }
}

std::vector<std::string> with_class_patterns(std::vector<std::string> names) {
  std::set<std::string> patterns;
  for (std::string name : names) {
    if (!name.ends_with("_0")) continue;
    while (name.ends_with("_0")) name.resize(name.size() - 2);
    patterns.insert(name + "_*");
  }
  names.insert(names.end(), patterns.begin(), patterns.end());
  return names;
}

std::vector<std::string> metric_names(const std::vector<MetricConfig>& metrics) {
  std::vector<std::string> names;
  for (const MetricConfig& metric : metrics) {
    for (std::string& name : metric.names()) names.push_back(std::move(name));
  }
  if (std::find(names.begin(), names.end(), "loss") == names.end()) names.emplace_back("loss");
  return names;
}

void require_metric(const ConfigNode& node, const std::string& key, const std::string& metric,
                    const std::vector<std::string>& names) {
  const auto is_meant = [&](const std::string& name) {
    return name == metric || (name.ends_with('*') && metric.starts_with(name.substr(0, name.size() - 1)));
  };
  if (std::any_of(names.begin(), names.end(), is_meant)) return;
  node.fail_value(key, "a metric of evaluator; " + known_and_nearest(metric, names));
}

void add_metrics(const std::vector<MetricConfig>& metrics, BaseTrainer& trainer) {
  for (const MetricConfig& metric : metrics) {
    if (is_plain_loss(metric)) continue;
    trainer.add_metric(std::make_unique<ConfiguredMetric>(register_metric.make(metric.node), metric.node),
                       metric.prefix);
  }
}

}  // namespace duet
