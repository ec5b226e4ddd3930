#pragma once

#include <string>
#include <vector>
#include "cli/config/config.h"

namespace duet {

class BaseTrainer;

// One entry of evaluator.
struct MetricConfig {
  ConfigNode node;  // built from again for every trainer
  std::string prefix;

  std::vector<std::string> names() const;  // of its results, prefix included
};

// `evaluator`, or `val_evaluator` as mmengine calls it: a map or a list of them. Every key is checked. Throws
// ConfigError for two results of one name.
std::vector<MetricConfig> read_metrics(const ConfigNode& root);
// `test_evaluator`; `otherwise` if there is none.
std::vector<MetricConfig> read_test_metrics(const ConfigNode& root, const std::vector<MetricConfig>& otherwise);

// Gives metrics over as many classes the names of these, by number, unless the config names them. Their results are
// called by them from then on.
void name_classes(const std::vector<MetricConfig>& metrics, const std::vector<std::string>& names);
// Results' names before the data is read, which may name classes: beside "f1_0" there is "f1_*", which stands for all
// that begin like it in require_metric().
std::vector<std::string> with_class_patterns(std::vector<std::string> names);

// What an evaluation will report, in order; "loss" is last unless it is named before.
std::vector<std::string> metric_names(const std::vector<MetricConfig>& metrics);

// Throws ConfigError at `key` unless `metric` is one of `names`.
void require_metric(const ConfigNode& node, const std::string& key, const std::string& metric,
                    const std::vector<std::string>& names);

void add_metrics(const std::vector<MetricConfig>& metrics, BaseTrainer& trainer);

}  // namespace duet
