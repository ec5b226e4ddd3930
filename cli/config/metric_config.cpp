#include "cli/config/metric_config.h"
#include <algorithm>
#include <map>
#include <memory>
#include "base/detail/text.h"
#include "base/error.h"
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

MetricConfig read_metric(const ConfigNode& node) {
  node.need<std::string>("type");
  MetricConfig metric{node, read_prefix(node), {}};
  for (const std::string& name : make_metric(node)->names()) {
    metric.names.push_back(metric.prefix.empty() ? name : metric.prefix + "/" + name);
  }
  return metric;
}

std::vector<MetricConfig> read_list_of_metrics(const std::vector<ConfigNode>& nodes) {
  std::vector<MetricConfig> metrics;
  std::map<std::string, std::string> reported_by;
  for (const ConfigNode& node : nodes) {
    metrics.push_back(read_metric(node));
    if (!is_plain_loss(metrics.back())) reported_by.emplace("loss", "every evaluation");
    for (const std::string& name : metrics.back().names) {
      const auto [other, fresh] = reported_by.emplace(name, node.path());
      if (fresh) continue;
      node.fail("prefix", "does not tell '" + name + "' from that of " + other->second + "; give one of them a prefix");
    }
  }
  return metrics;
}

// What does not even fit the first batch (an output or a tensor that is not there, another number of classes) is a
// mistake of the config and not of the data.
class ConfiguredMetric : public Metric {
 public:
  ConfiguredMetric(std::unique_ptr<Metric> metric, ConfigNode node)
      : metric_(std::move(metric)), node_(std::move(node)) {}

  std::vector<std::string> names() const override { return metric_->names(); }
  void reset() override { metric_->reset(); }
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override {
    if (fits_) return metric_->add(batch, outputs, weight);
    try {
      metric_->add(batch, outputs, weight);
    } catch (const DataError& error) {
      node_.located([&] { throw ConfigError(error.what()); });
    }
    fits_ = true;
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

std::vector<std::string> metric_names(const std::vector<MetricConfig>& metrics) {
  std::vector<std::string> names;
  for (const MetricConfig& metric : metrics) names.insert(names.end(), metric.names.begin(), metric.names.end());
  if (std::find(names.begin(), names.end(), "loss") == names.end()) names.emplace_back("loss");
  return names;
}

void require_metric(const ConfigNode& node, const std::string& key, const std::string& metric,
                    const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), metric) != names.end()) return;
  node.fail_value(key, "a metric of evaluator; " + known_and_nearest(metric, names));
}

void add_metrics(const std::vector<MetricConfig>& metrics, BaseTrainer& trainer) {
  for (const MetricConfig& metric : metrics) {
    if (is_plain_loss(metric)) continue;
    trainer.add_metric(std::make_unique<ConfiguredMetric>(make_metric(metric.node), metric.node), metric.prefix);
  }
}

}  // namespace duet
