#include "base/detail/error_text.h"
#include <c10/util/Exception.h>

namespace duet {

namespace {

std::string without_backtrace(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace

std::string first_line(const std::exception& error) {
  const std::string text = without_backtrace(error);
  return text.substr(0, text.find('\n'));
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return without_backtrace(known);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace duet
