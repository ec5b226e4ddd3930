#include "base/error.h"
#include "base/detail/caller_words.h"
#include "base/detail/text.h"

namespace duet {

Error::Error(const std::string& message, int exit_code)
    : std::runtime_error(escape_control_chars(in_callers_words(message))), exit_code_(exit_code) {}

DataError::DataError(const std::string& message) : Error(one_line(message, std::string::npos), 3) {}

}  // namespace duet
