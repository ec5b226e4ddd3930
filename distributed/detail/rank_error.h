#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace duet {

// What an error of one rank is to the others: a letter for its type, and its text. Empty: there is none.
std::string packed_error(const std::exception_ptr& error);

// The same for another rank than `rank`, which its text names.
std::string packed_error_of(int64_t rank, const std::string& packed);

// Throws an error of the type that was packed; `exit_code` is that of an Error of no other type.
[[noreturn]] void throw_packed(const std::string& packed, int exit_code = 1);

}  // namespace duet
