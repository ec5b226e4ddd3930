#include "hooks/detail/log_text.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <c10/util/StringUtil.h>

namespace duet {

namespace {

// What JSON lines have of their own.
bool is_reserved(const std::string& name) {
  for (const char* own : {"kind", "step", "wall_time", "run_id", "mode", "epoch", "iter"}) {
    if (name == own) return true;
  }
  return false;
}

bool is_taken(const LogValues& values, const std::string& name) { return find_value(values, name) != nullptr; }

double number_of(const LogValues& values, const std::string& name) {
  const LogValue* value = find_value(values, name);
  const auto* number = value == nullptr ? nullptr : std::get_if<double>(value);
  return number == nullptr ? std::nan("") : *number;
}

// What train_line() does not show, or shows in a way of its own.
bool has_own_place(const std::string& name) {
  for (const char* own : {"lr", "time", "data_time", "memory", "eta", "samples_per_second"}) {
    if (name == own) return true;
  }
  return false;
}

}  // namespace

std::string formatted(const char* format, double value) {
  if (std::isnan(value)) return "nan";  // printf may say -nan
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string number_text(double value) { return formatted("%.4g", value); }

std::string duration_text(double seconds) {
  const auto total = static_cast<int64_t>(std::lround(std::max(seconds, 0.0)));
  char text[32];
  std::snprintf(text, sizeof(text), "%lld:%02d:%02d", static_cast<long long>(total / 3600),
                static_cast<int>(total / 60 % 60), static_cast<int>(total % 60));
  return text;
}

std::string of_total(int64_t value, int64_t total) {
  return total > 0 ? c10::str(value, "/", total) : std::to_string(value);
}

int64_t shown_epoch(const TrainContext& context) {
  const bool between = context.progress.step_in_epoch == 0 && context.progress.epoch > 0;
  return between ? context.progress.epoch : context.progress.epoch + 1;
}

void put_value(LogValues& values, std::string name, LogValue value) {
  const bool own = is_reserved(name) && !is_taken(values, name) && !std::holds_alternative<double>(value);
  while (!own && (is_reserved(name) || is_taken(values, name))) name = "log." + name;
  values.emplace_back(std::move(name), std::move(value));
}

const LogValue* find_value(const LogValues& values, const std::string& name) {
  for (const auto& entry : values) {
    if (entry.first == name) return &entry.second;
  }
  return nullptr;
}

std::string train_line(const TrainContext& context, int64_t epoch, const LogValues& values) {
  std::string text = c10::str("step ", of_total(context.progress.step, context.progress.run_length()), "  epoch ",
                              of_total(epoch, context.progress.max_epochs));
  const auto shown = [&](const char* name) { return is_taken(values, name); };
  if (shown("lr")) text += "  lr " + formatted("%.2e", number_of(values, "lr"));
  for (const auto& [name, value] : values) {
    const auto* number = std::get_if<double>(&value);
    if (number != nullptr && !has_own_place(name)) text += "  " + name + " " + number_text(*number);
  }
  text += "  time " + formatted("%.1f", number_of(values, "time") * 1e3) + " ms (data " +
          formatted("%.1f", number_of(values, "data_time") * 1e3) + ")";
  if (shown("memory")) text += "  memory " + formatted("%.0f", number_of(values, "memory")) + " MB";
  if (shown("eta")) text += "  eta " + duration_text(number_of(values, "eta"));
  return text;
}

std::string metrics_line(const TrainContext& context, const std::string& kind) {
  std::string text = c10::str(kind, "  step ", of_total(context.progress.step, context.progress.run_length()));
  for (const auto& [name, value] : context.evaluation.metrics) text += "  " + name + " " + number_text(value);
  return text;
}

std::string progress_line(const TrainContext& context, const std::string& loss, double eta_seconds) {
  const int64_t total = context.progress.run_length();
  std::string text;
  if (total > 0) {
    constexpr int64_t kCells = 20;
    const int64_t done = std::clamp<int64_t>(context.progress.step * kCells / total, 0, kCells);
    text = "[" + std::string(static_cast<std::size_t>(done), '=') +
           std::string(static_cast<std::size_t>(kCells - done), ' ') + "] ";
  }
  text +=
      of_total(context.progress.step, total) + "  epoch " + of_total(shown_epoch(context), context.progress.max_epochs);
  if (!loss.empty()) text += "  loss " + loss;
  if (!std::isnan(eta_seconds)) text += "  eta " + duration_text(eta_seconds);
  return text;
}

}  // namespace duet
