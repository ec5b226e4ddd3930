#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace duet {

// What an error of one rank is to the others: a letter for its type, and its text. Empty: there is none. Private to
// core/comm.
std::string packed_error(const std::exception_ptr& error);

// Throws an error of the type of that of `rank`, which it names.
[[noreturn]] void throw_error_of(int64_t rank, const std::string& packed);

}  // namespace duet
