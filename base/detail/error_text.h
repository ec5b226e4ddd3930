#pragma once

#include <exception>
#include <string>

namespace duet {

// Errors as text and as values.

// The first line of an error's text, without LibTorch's stack trace. For the part in brackets of an error of our own.
std::string first_line(const std::exception& error);

// The text of any exception, LibTorch's without their stack trace. `error` is not null.
std::string text_of(const std::exception_ptr& error);

// What `call` throws; null if it returns.
template <class Call>
std::exception_ptr caught(const Call& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace duet
