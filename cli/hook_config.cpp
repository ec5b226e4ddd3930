#include <duet/cli/hook_config.h>

#include <c10/util/StringUtil.h>
#include <duet/core/hook_list.h>
#include <duet/core/nearest.h>
#include <duet/hooks/ema_hook.h>

#include <charconv>
#include <limits>
#include <map>
#include <vector>

namespace duet {

namespace {

const std::map<std::string, int>& priority_names() {
  static const std::map<std::string, int> kNames = {
      {"HIGHEST", kHighest},   {"VERY_HIGH", kVeryHigh},        {"HIGH", kHigh}, {"ABOVE_NORMAL", kAboveNormal},
      {"NORMAL", kNormal},     {"BELOW_NORMAL", kBelowNormal}, {"LOW", kLow},   {"VERY_LOW", kVeryLow},
      {"LOWEST", kLowest}};
  return kNames;
}

int64_t read_begin(const ConfigNode& node) {
  constexpr int64_t kLongest = std::numeric_limits<int>::max();
  const bool old_name = node.find<int64_t>("start_iters").has_value();
  if (old_name && node.find<int64_t>("begin_iter")) {
    node.fail("start_iters", "is set beside begin_iter, which is the same; remove one");
  }
  return node.read_int(old_name ? "start_iters" : "begin_iter", 0, 0, kLongest);
}

std::string free_name(const std::string& wanted, const HookList& hooks) {
  std::string name = wanted;
  for (int number = 2; hooks.find(name) != nullptr; ++number) name = c10::str(wanted, "_", number);
  return name;
}

}  // namespace

int read_priority(const ConfigNode& node, int fallback) {
  const std::optional<std::string> text = node.find<std::string>("priority");
  if (!text) return fallback;
  const auto found = priority_names().find(*text);
  if (found != priority_names().end()) return found->second;
  int number = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc() && end == text->data() + text->size() && number >= kHighest && number <= kLowest) return number;
  std::vector<std::string> names;
  for (const auto& entry : priority_names()) names.push_back(entry.first);
  node.fail("priority", c10::str("is '", *text, "', expected a number from 0 to 100 or a name; ", known_and_nearest(*text, names)));
}

std::unique_ptr<Hook> make_ema_hook(ConfigNode& node, HookContext& context) {
  EMAHookOptions options;
  options.average.type = node.read<std::string>("ema_type", options.average.type);
  options.average.momentum = node.read<double>("momentum", options.average.momentum);
  if (options.average.type == "MomentumAnnealingEMA") {
    options.average.gamma = node.read<int64_t>("gamma", options.average.gamma);
  }
  options.average.interval = node.read<int64_t>("interval", options.average.interval);
  options.update_buffers = node.read<bool>("update_buffers", options.update_buffers);
  options.evaluate_on_ema = node.read<bool>("evaluate_on_ema", options.evaluate_on_ema);
  options.begin_iter = read_begin(node);
  options.begin_epoch = node.read_int("begin_epoch", options.begin_epoch, 0, std::numeric_limits<int>::max());
  options.priority = read_priority(node, options.priority);
  const std::optional<std::string> name = node.find<std::string>("name");
  options.name = name ? *name : free_name(options.name, context.hooks);
  node.reject_unknown();
  return std::make_unique<EMAHook>(options);
}

}  // namespace duet
