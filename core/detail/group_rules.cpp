#include "core/detail/group_rules.h"
#include <set>
#include "base/error.h"

namespace duet {

void leave_out_untrained(const ParamGroups& groups, bool allowed, NamedTensors& parameters) {
  std::set<const void*> trainable, held;
  for (const auto& parameter : parameters) trainable.insert(parameter.second.unsafeGetTensorImpl());
  for (const ParamGroup& group : groups) {
    for (const auto& [name, value] : group.parameters) {
      held.insert(value.unsafeGetTensorImpl());
      if (trainable.count(value.unsafeGetTensorImpl()) > 0) continue;
      throw ConfigError("[TrainStep] group '" + group.name + "' holds '" + name +
                        "', which is no trainable parameter of the task; let param_groups put only these into groups");
    }
  }
  const auto is_left = [&held](const auto& item) { return held.count(item.second.unsafeGetTensorImpl()) == 0; };
  for (const auto& parameter : parameters) {
    if (allowed || !is_left(parameter)) continue;
    throw ConfigError("[TrainStep] parameter '" + parameter.first +
                      "' is in no group and would never be trained; let param_groups put it into one, freeze it with "
                      "requires_grad_(false), or set allow_untrained where another trainer trains it");
  }
  std::erase_if(parameters, is_left);
}

}  // namespace duet
