#include "base/error.h"
#include "base/detail/text.h"

namespace duet {

Error::Error(const std::string& message, int exit_code)
    : std::runtime_error(harmless_text(message)), exit_code_(exit_code) {}

DataError::DataError(const std::string& message) : Error(one_line(message, std::string::npos), 3) {}

}  // namespace duet
