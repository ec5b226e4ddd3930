#pragma once

#include <string>
#include <vector>

namespace duet {

// Throws ConfigError for an override such as lr=0.1 that names only the last part of a key.
void check_override_keys(const std::vector<std::string>& overrides);

// For a word of the command line such as --lr, --lr=0.1 or --optim_wrapper.optimizer.lr: ": a value of the config is
// set by optim_wrapper.optimizer.lr=VALUE". Empty if no key is called or ends like that.
std::string hint_for_flag(const std::string& flag);

}  // namespace duet
