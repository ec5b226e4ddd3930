#pragma once

#include <memory>
#include <string>
#include "hooks/log_sink.h"

namespace duet {

struct LogSinkOptions;
struct LoggerHookOptions;

// The sink that `options` of a logger ask for; null if it would write to a work_dir and there is none. Throws
// ConfigError for a place that cannot be written. Private to hooks/.
std::unique_ptr<LogSink> make_sink(const LogSinkOptions& options, const LoggerHookOptions& logger,
                                   const std::string& work_dir, const std::string& run_id);

}  // namespace duet
