#pragma once

#include <string>

namespace duet {

// The place in the user's code that the calling thread is in: its innermost function that is neither LibTorch's, the
// standard library's nor the recorder's, as "net.cpp:31 in Net::forward", or without debug information "Net::forward".
// Empty if the program's symbol tables name none (stripped), or if the step's own code, such as backward(), called.
std::string place_in_user_code();

// "duet::make::{lambda}" out of a demangled C++ name: without arguments and wrappers. For place_in_user_code().
std::string short_function_name(const std::string& demangled);

}  // namespace duet
