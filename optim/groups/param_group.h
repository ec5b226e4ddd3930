#pragma once

#include <map>
#include <string>
#include <vector>
#include "../../base/batch.h"

namespace duet {

// Parameters that an optimizer treats alike.
struct ParamGroup {
  std::string name;                       // for tables and messages: "decay", "layer_3_no_decay"; may be empty
  NamedTensors parameters;                // trainable ones, each in exactly one group
  std::map<std::string, double> numbers;  // overrides of the optimizer's numbers: "lr", "weight_decay", "momentum",
                                          // "beta1", "beta2", ...; what is absent stays the optimizer's own
};
using ParamGroups = std::vector<ParamGroup>;

}  // namespace duet
