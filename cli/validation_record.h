#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <nlohmann/json_fwd.hpp>
#include "metrics/metric.h"

namespace duet {

// The results of all validations of a run: the last ones, and the best of each whose name says what is better.
class ValidationRecord {
 public:
  void add(const MetricValues& results, int64_t step);
  // {"final": {name: value}, "best": {name: {"value": ..., "step": ...}}}
  nlohmann::ordered_json json() const;

 private:
  struct Best {
    bool is_less_better = false;
    double value = 0;
    int64_t step = 0;
  };

  MetricValues last_;
  std::map<std::string, Best> best_;
};

}  // namespace duet
