#include "core/hook.h"
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

constexpr std::pair<const char*, int> kPriorities[] = {
    {"HIGHEST", kHighest}, {"VERY_HIGH", kVeryHigh},       {"HIGH", kHigh}, {"ABOVE_NORMAL", kAboveNormal},
    {"NORMAL", kNormal},   {"BELOW_NORMAL", kBelowNormal}, {"LOW", kLow},   {"VERY_LOW", kVeryLow},
    {"LOWEST", kLowest}};

void require_callback(bool given, HookPoint point, const std::string& name) {
  if (given) return;
  throw ConfigError("[CallbackHook] found no callback for " + std::string(to_string(point)) + " of '" + name +
                    "', expected something to call; give one");
}

}  // namespace

std::optional<int> parse_priority(const std::string& text) {
  for (const auto& [name, number] : kPriorities) {
    if (name == text) return number;
  }
  const std::optional<int> number = parse_number<int>(text);
  return number && *number >= kHighest && *number <= kLowest ? number : std::nullopt;
}

std::string priority_text(int priority) {
  for (const auto& [name, number] : kPriorities) {
    if (number == priority) return std::string(name) + " (" + std::to_string(priority) + ")";
  }
  return std::to_string(priority);
}

std::vector<std::string> priority_names() { return keys_in(kPriorities); }

CallbackHook::CallbackHook(std::string name, int priority, std::vector<std::string> after)
    : name_(std::move(name)), priority_(priority), after_(std::move(after)) {
  for (int point = 0; point < static_cast<int>(HookPoint::kCount); ++point)
    set_used(static_cast<HookPoint>(point), false);
}

CallbackHook& CallbackHook::on(HookPoint point, Callback callback) {
  require<ConfigError>(
      point != HookPoint::kInStep && point != HookPoint::kCount,
      "[CallbackHook] found in_step in on(), expected a point that takes a TrainContext; use on_step()");
  require_callback(callback != nullptr, point, name_);
  callbacks_[point].push_back(std::move(callback));
  set_used(point, true);
  return *this;
}

CallbackHook& CallbackHook::on_step(StepCallback callback) {
  require_callback(callback != nullptr, HookPoint::kInStep, name_);
  step_callbacks_.push_back(std::move(callback));
  set_used(HookPoint::kInStep, true);
  return *this;
}

void CallbackHook::in_step(StepView& context) {
  for (const StepCallback& callback : step_callbacks_) callback(context);
}

void CallbackHook::call(HookPoint point, TrainContext& context) {
  const auto found = callbacks_.find(point);
  if (found == callbacks_.end()) return;
  for (const Callback& callback : found->second) callback(context);
}

}  // namespace duet
