#include "base/log.h"
#include <memory>
#include <string>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include "base/detail/caller_words.h"
#include "base/detail/text.h"

namespace duet {

namespace {

// Our own logger, never spdlog's default one: a program that embeds duet keeps its own.
spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    auto made = std::make_shared<spdlog::logger>("duet", sink);
    made->set_pattern("%Y-%m-%d %H:%M:%S %^%l%$ %v");
    made->flush_on(spdlog::level::warn);
    return made;
  }();
  return *instance;
}

std::string& prefix() {
  static std::string text;
  return text;
}

spdlog::level::level_enum level_of(LogLevel level) {
  using namespace spdlog::level;
  static constexpr level_enum kLevels[] = {debug, info, warn, err};
  return kLevels[static_cast<int>(level)];
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  logger().log(level_of(level), prefix() + escape_control_chars(in_callers_words(std::string(message))));
}

void set_log_prefix(std::string_view text) { prefix() = text; }

void set_log_level(LogLevel level) { logger().set_level(level_of(level)); }

}  // namespace duet
