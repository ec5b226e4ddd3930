#include "optim/groups/detail/param_group_builder.h"
#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "optim/optimizers/optimizer_kind.h"

namespace duet {

namespace {

std::string to_text(const std::map<std::string, double>& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) text += c10::str(text.empty() ? "" : ", ", name, " ", value);
  return text.empty() ? "the optimizer's own numbers" : text;
}

// A group that many rules agree on is named by the first of them.
std::string name_of(const std::vector<std::string>& rules) {
  constexpr std::size_t kShown = 3;
  std::string name;
  for (std::size_t i = 0; i < std::min(rules.size(), kShown); ++i) name += (i == 0 ? "" : "+") + rules[i];
  return rules.size() > kShown ? c10::str(name, "+", rules.size() - kShown, " more") : name;
}

}  // namespace

std::map<std::string, double> base_numbers(const OptimizerOptions& options) {
  options.validate();
  const OptimizerKind* kind = find_optimizer_kind(options);
  // LBFGS, which is no kernel over groups.
  return kind != nullptr ? kind->numbers(options) : std::map<std::string, double>{{"lr", options.as<LBFGS>().lr}};
}

ParamGroupBuilder::ParamGroupBuilder(const OptimizerOptions& options, bool may_differ)
    : optimizer_(options), base_(base_numbers(options)), may_differ_(may_differ) {}

void ParamGroupBuilder::check(const std::string& parameter, const std::map<std::string, double>& numbers) const {
  for (const auto& [name, value] : numbers) {
    if (base_.count(name) == 0) {
      throw ConfigError(c10::str("[ParamGroups] found ", name, " = ", value, " for '", parameter, "', but ",
                                 optimizer_.type(), " has no such number; ", known_and_nearest(name, keys_in(base_))));
    }
    optimizer_.check_number(name, value);
  }
}

void ParamGroupBuilder::warn_if_other(const Entry& first, const Entry& again) const {
  if (may_differ_ || first.numbers == again.numbers) return;
  log_warning(c10::str("[ParamGroups] '", again.name, "' is the same tensor as '", first.name,
                       "' and keeps its options (", to_text(first.numbers), "); under this name they would be ",
                       to_text(again.numbers), "; bypass_duplicate: true accepts that"));
}

void ParamGroupBuilder::add(const std::pair<std::string, at::Tensor>& parameter, std::map<std::string, double> numbers,
                            const std::string& rule) {
  const auto& [name, tensor] = parameter;
  if (!tensor.requires_grad()) return;
  check(name, numbers);
  std::erase_if(numbers, [&](const auto& number) { return base_.at(number.first) == number.second; });
  const auto [entry, is_new] = seen_.emplace(tensor.unsafeGetTensorImpl(), Entry{name, numbers});
  if (!is_new) return warn_if_other(entry->second, {name, numbers});

  auto group = std::find_if(groups_.begin(), groups_.end(), [&](const ParamGroup& g) { return g.numbers == numbers; });
  if (group == groups_.end()) {
    group = groups_.insert(group, {"", {}, std::move(numbers)});
    rules_.emplace_back();
  }
  group->parameters.emplace_back(name, tensor);
  std::vector<std::string>& rules = rules_[static_cast<std::size_t>(group - groups_.begin())];
  if (std::find(rules.begin(), rules.end(), rule) == rules.end()) rules.push_back(rule);
}

ParamGroups ParamGroupBuilder::finish() {
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].name = name_of(rules_[i]);
  return std::move(groups_);
}

}  // namespace duet
