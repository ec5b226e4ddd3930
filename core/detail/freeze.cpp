#include "core/detail/freeze.h"
#include <algorithm>
#include <string_view>
#include "base/detail/text.h"
#include "base/error.h"
#include "core/task.h"

namespace duet {

namespace {

// Whether `pattern`, in which * stands for any text, is all of `name`. After a mismatch the last * takes one more.
bool fits_all(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Or the beginning of it, up to a dot.
bool fits(std::string_view pattern, std::string_view name) {
  if (fits_all(pattern, name)) return true;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (fits_all(pattern, name.substr(0, dot))) return true;
  }
  return false;
}

}  // namespace

void freeze(Task& task, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  const NamedTensors parameters = task.named_parameters();
  const std::vector<ModuleInfo> modules = task.modules();
  std::vector<std::string> names, held;
  for (const auto& parameter : parameters) names.push_back(parameter.first);
  for (const ModuleInfo& module : modules) names.push_back(module.path);
  for (const std::string& pattern : patterns) {
    require<ConfigError>(!pattern.empty(), "[freeze] found an empty pattern, expected a name of a module or parameter");
    const auto found = [&](const std::string& name) { return fits(pattern, name); };
    if (std::none_of(names.begin(), names.end(), found)) {
      throw ConfigError("[freeze] found no module or parameter called '" + pattern + "'; the parameters are " +
                        join({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(parameters.size())}) +
                        did_you_mean(pattern, names));
    }
    for (const auto& [name, tensor] : parameters) {
      if (found(name)) at::Tensor(tensor).requires_grad_(false);
    }
    for (const ModuleInfo& module : modules) {
      if (fits_all(pattern, module.path)) held.push_back(module.path);
    }
  }
  const auto is_trained = [](const auto& parameter) { return parameter.second.requires_grad(); };
  require<ConfigError>(std::any_of(parameters.begin(), parameters.end(), is_trained),
                       "[freeze] leaves no parameter to train, expected one; freeze less");
  task.hold_in_evaluation(held);
  task.train(true);
}

}  // namespace duet
