#pragma once

#include <duet/cli/config.h>
#include <duet/cli/registry.h>

#include <memory>

namespace duet {

// The key `priority` of a hook: a number from 0 to 100, or VERY_HIGH, NORMAL and the like.
int read_priority(const ConfigNode& node, int fallback);

// type: EMAHook, with mmengine's keys. Without `name` the first of a run is called ema, further ones ema_2, ema_3, ...
std::unique_ptr<Hook> make_ema_hook(ConfigNode& node, HookContext& context);

}  // namespace duet
