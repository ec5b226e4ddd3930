#pragma once

#include <string>
#include <vector>

namespace duet {

// Runs a launcher of processes (torchrun with its arguments) and waits for it. Signals to this process go to those that
// the launcher has started, as a launcher would end them half a minute later, saved or not: they save and end, and this
// returns 75 then. A second SIGINT kills all of them. Returns the launcher's exit code otherwise. Throws ConfigError if
// it cannot be run.
int run_launcher(const std::vector<std::string>& words);

}  // namespace duet
