#pragma once

#include <string>
#include <vector>

namespace duet {

class Task;

// What TrainerOptions::freeze says. Throws ConfigError for a pattern that fits no module and no parameter.
void freeze(Task& task, const std::vector<std::string>& patterns);

}  // namespace duet
