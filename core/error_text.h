#pragma once

#include <exception>
#include <string>

namespace duet {

// The first line of an error's text, without LibTorch's stack trace. For the part in brackets of an error of our own.
std::string first_line(const std::exception& error);

}  // namespace duet
