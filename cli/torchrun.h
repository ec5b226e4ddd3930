#pragma once

#include <string>

namespace duet {

// PyTorch's launcher: the one in PATH, else the one beside the LibTorch that this program runs with, if it is that of a
// Python. Throws ConfigError if there is none.
std::string find_torchrun();

// Where this program lies; `otherwise` (argv[0]) if the system does not say.
std::string path_of_program(const std::string& otherwise);

}  // namespace duet
