#include "core/detail/freeze.h"
#include <algorithm>
#include "base/detail/name_pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "core/task.h"

namespace duet {

void freeze(Task& task, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  const NamedTensors parameters = task.named_parameters();
  const std::vector<ModuleInfo> modules = task.modules();
  std::vector<std::string> names, held;
  for (const auto& parameter : parameters) names.push_back(parameter.first);
  for (const ModuleInfo& module : modules) names.push_back(module.path);
  for (const std::string& pattern : patterns) {
    require<ConfigError>(!pattern.empty(), "[freeze] found an empty pattern, expected a name of a module or parameter");
    const auto found = [&](const std::string& name) { return fits_pattern(pattern, name); };
    if (std::none_of(names.begin(), names.end(), found)) {
      throw ConfigError("[freeze] found no module or parameter called '" + pattern + "'; the parameters are " +
                        join({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(parameters.size())}) +
                        did_you_mean(pattern, names));
    }
    for (const auto& [name, tensor] : parameters) {
      if (found(name)) at::Tensor(tensor).requires_grad_(false);
    }
    for (const ModuleInfo& module : modules) {
      if (fits_whole(pattern, module.path)) held.push_back(module.path);
    }
  }
  const auto is_trained = [](const auto& parameter) { return parameter.second.requires_grad(); };
  require<ConfigError>(std::any_of(parameters.begin(), parameters.end(), is_trained),
                       "[freeze] leaves no parameter to train, expected one; freeze less");
  task.hold_in_evaluation(held);
  task.train(true);
}

}  // namespace duet
