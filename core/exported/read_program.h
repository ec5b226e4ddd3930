#pragma once

#include <string>
#include "core/exported/program.h"

namespace duet::exported {

// The program in the JSON of torch.export.save. Throws MalformedFile for what is wrong with it, ConfigError for ops
// that this process does not have or that cannot be trained, with the user's Python line.
Program read_program(const std::string& text);

}  // namespace duet::exported
