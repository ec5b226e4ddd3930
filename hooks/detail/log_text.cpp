#include "hooks/detail/log_text.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <iomanip>
#include <map>
#include <sstream>
#include <c10/util/StringUtil.h>
#include "core/task.h"

namespace duet {

namespace {

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::ranges::find(names, name) != names.end();
}

// What JSON lines have of their own.
bool is_reserved(const std::string& name) {
  return is_one_of(name, {"kind", "step", "wall_time", "run_id", "mode", "epoch", "iter"});
}

double number_of(const LogValues& values, const std::string& name) {
  const LogValue* value = find_value(values, name);
  const auto* number = value == nullptr ? nullptr : std::get_if<double>(value);
  return number == nullptr ? std::nan("") : *number;
}

struct Part {
  std::string name, type;
  int64_t parameters = 0, trainable = 0;
};

// Models often hang below one module: parts are those of the first level that has several. The length of what all
// parameters' names begin with, up to a dot.
std::size_t common_prefix(const NamedTensors& parameters) {
  std::string prefix = parameters.empty() ? "" : parameters.front().first;
  for (const auto& [name, parameter] : parameters) {
    const auto differs = std::ranges::mismatch(prefix, name).in1;
    prefix.erase(differs, prefix.end());
  }
  return prefix.rfind('.') + 1;
}

std::vector<Part> parts_of(const Task& task) {
  std::map<std::string, std::string> types;
  for (const ModuleInfo& module : task.modules()) {
    const bool ends_in_impl = module.type.size() > 4 && module.type.ends_with("Impl");
    types[module.path] = module.type.substr(0, module.type.size() - (ends_in_impl ? 4 : 0));
  }
  const NamedTensors parameters = task.named_parameters();
  const std::size_t prefix = common_prefix(parameters);
  std::vector<Part> parts;
  for (const auto& [name, parameter] : parameters) {
    const std::string path = name.substr(0, name.find('.', prefix));
    auto part = std::ranges::find(parts, path, &Part::name);
    if (part == parts.end()) part = parts.insert(part, {path, types[path]});
    part->parameters += parameter.numel();
    if (parameter.requires_grad()) part->trainable += parameter.numel();
  }
  return parts;
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
  const auto taken = [&] { return find_value(values, name) != nullptr; };
  const bool own = is_reserved(name) && !taken() && !std::holds_alternative<double>(value);
  while (!own && (is_reserved(name) || taken())) name = "log." + name;
  values.emplace_back(std::move(name), std::move(value));
}

const LogValue* find_value(const LogValues& values, const std::string& name) {
  const auto found = std::ranges::find(values, name, &LogValues::value_type::first);
  return found == values.end() ? nullptr : &found->second;
}

std::string train_line(const TrainContext& context, int64_t epoch, const LogValues& values) {
  std::string text = c10::str("step ", of_total(context.progress.step, context.progress.run_length()), "  epoch ",
                              of_total(epoch, context.progress.max_epochs));
  const auto number = [&](const char* name, const char* format, double scale = 1) {
    return formatted(format, number_of(values, name) * scale);
  };
  const auto shown = [&](const char* name) { return find_value(values, name) != nullptr; };
  if (shown("lr")) text += "  lr " + number("lr", "%.2e");
  for (const auto& [name, value] : values) {
    const auto* own = std::get_if<double>(&value);
    const bool has_a_place = is_one_of(name, {"lr", "time", "data_time", "memory", "eta", "samples_per_second"});
    if (own != nullptr && !has_a_place) text += "  " + name + " " + number_text(*own);
  }
  text += "  time " + number("time", "%.1f", 1e3) + " ms (data " + number("data_time", "%.1f", 1e3) + ")";
  if (shown("memory")) text += "  memory " + number("memory", "%.0f") + " MB";
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
    std::string cells(kCells, ' ');
    std::fill_n(cells.begin(), std::clamp<int64_t>(context.progress.step * kCells / total, 0, kCells), '=');
    text = "[" + cells + "] ";
  }
  text +=
      of_total(context.progress.step, total) + "  epoch " + of_total(shown_epoch(context), context.progress.max_epochs);
  if (!loss.empty()) text += "  loss " + loss;
  if (!std::isnan(eta_seconds)) text += "  eta " + duration_text(eta_seconds);
  return text;
}

std::string model_summary(const Task& task) {
  const std::vector<Part> parts = parts_of(task);
  Part all;
  int name_width = 0, type_width = 0, count_width = 0;
  for (const Part& part : parts) {
    all.parameters += part.parameters;
    all.trainable += part.trainable;
    name_width = std::max(name_width, static_cast<int>(part.name.size()));
    type_width = std::max(type_width, static_cast<int>(part.type.size()));
    count_width = std::max(count_width, static_cast<int>(std::to_string(part.parameters).size()));
  }
  double bytes = 0;
  for (const auto& entry : task.named_parameters()) bytes += static_cast<double>(entry.second.nbytes());
  int64_t buffers = 0;
  for (const auto& entry : task.named_buffers()) buffers += entry.second.numel();

  std::ostringstream text;
  text << "model: " << all.parameters << " parameters (" << formatted("%.1f", bytes / 1048576) << " MiB), "
       << all.trainable << " trainable";
  if (buffers > 0) text << ", " << buffers << " values in buffers";
  for (const Part& part : parts) {
    text << "\n  " << std::left << std::setw(name_width) << part.name << "  " << std::setw(type_width) << part.type
         << "  " << std::right << std::setw(count_width) << part.parameters;
    if (part.trainable == 0) text << "  frozen";
    if (part.trainable > 0 && part.trainable < part.parameters) text << "  " << part.trainable << " trainable";
  }
  return text.str();
}

}  // namespace duet
