#include "cli/commands/explain_hooks.h"
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "core/hook.h"

namespace duet {

namespace {

// Points with the same hooks in the same places.
struct PointGroup {
  std::string points;
  std::vector<HookPlace> places;
};

std::vector<HookPoint> all_points() {
  std::vector<HookPoint> points;
  for (int i = 0; i < static_cast<int>(HookPoint::kCount); ++i) points.push_back(static_cast<HookPoint>(i));
  return points;
}

bool same_places(const std::vector<HookPlace>& a, const std::vector<HookPlace>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const HookPlace& x, const HookPlace& y) { return x.name == y.name && x.reason == y.reason; });
}

std::vector<PointGroup> grouped(const HookList& hooks) {
  std::vector<PointGroup> groups;
  for (const HookPoint point : all_points()) {
    std::vector<HookPlace> places = hooks.places(point);
    if (places.empty()) continue;
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const PointGroup& group) { return same_places(group.places, places); });
    if (same != groups.end()) {
      same->points += std::string(", ") + to_string(point);
    } else {
      groups.push_back({to_string(point), std::move(places)});
    }
  }
  return groups;
}

void add_names(const HookList& hooks, HookPoint point, std::vector<std::string>& names) {
  for (const HookPlace& place : hooks.places(point)) {
    if (std::find(names.begin(), names.end(), place.name) == names.end()) names.push_back(place.name);
  }
}

}  // namespace

std::vector<std::string> hooks_in_step(const HookList& hooks) {
  std::vector<std::string> names;
  add_names(hooks, HookPoint::kInStep, names);
  return names;
}

std::vector<std::string> hooks_that_split(const HookList& hooks) {
  std::vector<std::string> names;
  add_names(hooks, HookPoint::kAfterBackward, names);
  add_names(hooks, HookPoint::kBeforeOptimizerStep, names);
  return names;
}

void print_hook_places(const HookList& hooks) {
  std::size_t width = 0;
  for (const std::string& name : hooks.order()) width = std::max(width, name.size());
  std::printf("hooks by point, in calling order:\n");
  for (const PointGroup& group : grouped(hooks)) {
    std::printf("  %s\n", group.points.c_str());
    for (const HookPlace& place : group.places) {
      std::printf("    %-*s  %s\n", static_cast<int>(width), place.name.c_str(), place.reason.c_str());
    }
  }
  const std::vector<std::string> captured = hooks_in_step(hooks), splitting = hooks_that_split(hooks);
  if (!captured.empty()) std::printf("captured with the step: %s\n", join(captured).c_str());
  if (!splitting.empty()) {
    std::printf("acting between backward and optimizer, so that graph mode splits the captured step there: %s\n",
                join(splitting).c_str());
  }
}

void add_hook_places(const HookList& hooks, nlohmann::ordered_json& json) {
  nlohmann::ordered_json order, reasons;
  for (const HookPoint point : all_points()) {
    auto& names = order[to_string(point)] = nlohmann::ordered_json::array();
    auto& why = reasons[to_string(point)] = nlohmann::ordered_json::object();
    for (const HookPlace& place : hooks.places(point)) {
      names.push_back(place.name);
      why[place.name] = place.reason;
    }
  }
  json["hook_order"] = std::move(order);
  json["hook_reasons"] = std::move(reasons);
}

}  // namespace duet
