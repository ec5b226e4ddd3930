#include "cli/failure.h"
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <new>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

std::string without_frames(const std::string& text) { return text.substr(0, text.find("\nException raised from")); }

// Without the source line that a failed allocation begins with.
std::string text_of(const c10::Error& error) {
  const std::string line = first_line(error);
  const std::size_t no_memory = line.find("can't allocate memory");
  if (no_memory == std::string::npos) return line;
  return "out of memory: " + line.substr(no_memory) + "; use a smaller batch or model";
}

}  // namespace

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return {without_frames(known.what()), known.exit_code()};
  } catch (const c10::Error& torch_error) {
    return {text_of(torch_error)};
  } catch (const std::bad_alloc&) {
    return {"out of memory; use a smaller batch or model"};
  } catch (const std::exception& other) {
    return {first_line(other)};
  } catch (...) {
    return {"an exception that is no std::exception"};
  }
}

void write_error_file(const std::string& text) {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  nlohmann::ordered_json message;
  message["message"] = text;
  // A py_callstack would be shown in place of the message.
  message["extraInfo"] = {{"timestamp", std::to_string(std::time(nullptr))}};
  std::ofstream(path) << nlohmann::ordered_json{{"message", message}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace duet
