#pragma once

#include <string>
#include <vector>
#include <nlohmann/json_fwd.hpp>

namespace duet {

class HookList;

// What `duet explain` says about the hooks of a run.

// For every point at which somebody acts: who, in which order, and why there. Then what the hooks mean for a captured
// step. Goes to stdout.
void print_hook_places(const HookList& hooks);
// The same as "hook_order": {point: [names]} and "hook_reasons": {point: {name: reason}}.
void add_hook_places(const HookList& hooks, nlohmann::ordered_json& json);

// Names of those whose code is captured with the step.
std::vector<std::string> hooks_in_step(const HookList& hooks);
// Names of those that look at gradients in the middle of it, where graph mode splits its step.
std::vector<std::string> hooks_that_split(const HookList& hooks);

}  // namespace duet
