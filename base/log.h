#pragma once

#include <string_view>

namespace duet {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Writes one line to the log (stderr by default). The only door to the logging library.
void log(LogLevel level, std::string_view message);
inline void log_info(std::string_view message) { log(LogLevel::kInfo, message); }
inline void log_warning(std::string_view message) { log(LogLevel::kWarning, message); }
inline void log_error(std::string_view message) { log(LogLevel::kError, message); }

void set_log_level(LogLevel level);
// Stands at the start of every message: which of several processes speaks. Set before there are threads that log.
void set_log_prefix(std::string_view prefix);

}  // namespace duet
