#include <duet/hooks/logger_hook.h>

#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <duet/core/log.h>
#include <duet/hooks/run_length.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string formatted(const char* format, double value) {
  if (std::isnan(value)) return "nan";  // printf may say -nan
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string number(double value) { return formatted("%.4g", value); }

std::string duration(double seconds) {
  const auto total = static_cast<int64_t>(std::lround(std::max(seconds, 0.0)));
  char text[32];
  std::snprintf(text, sizeof(text), "%lld:%02d:%02d", static_cast<long long>(total / 3600),
                static_cast<int>(total / 60 % 60), static_cast<int>(total % 60));
  return text;
}

// JSON has no NaN and no infinities.
Json json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

void put(Json& line, std::string name, double value) {
  while (line.contains(name)) name = "log." + name;
  line[name] = json_number(value);
}

std::string text_of(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

// From 1. An epoch that has just ended, with the next one not begun, is still the one to name.
int64_t shown_epoch(const TrainContext& context) {
  const bool between = context.update_in_epoch == 0 && context.epoch > 0;
  return between ? context.epoch : context.epoch + 1;
}

std::string of_total(int64_t value, int64_t total) {
  return total > 0 ? c10::str(value, "/", total) : std::to_string(value);
}

double learning_rate(const TrainContext& context) {
  const std::vector<std::string> names = context.hyper_parameters.names();
  const bool known =
      context.hyper_parameters.group_count() > 0 && std::find(names.begin(), names.end(), "lr") != names.end();
  return known ? context.hyper_parameters.get(0, "lr") : std::nan("");
}

// Waits for the device.
std::vector<std::pair<std::string, double>> read(const UpdateOutput& output) {
  std::vector<std::pair<std::string, double>> values;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) values.emplace_back(name, tensor.item().toDouble());
  };
  add("loss", output.loss);
  for (const auto& [name, tensor] : output.log) add(name, tensor);
  add("grad_norm", output.grad_norm);
  return values;
}

// A run that was killed may have left half a line.
bool ends_in_half_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

}  // namespace

void LoggerHookOptions::validate() const {
  if (interval < 1) {
    throw ConfigError(c10::str("[LoggerHook] found interval ", interval, ", expected at least 1 update; raise it"));
  }
}

LoggerHook::LoggerHook(LoggerHookOptions options) : options_(std::move(options)) { options_.validate(); }

void LoggerHook::before_train(TrainContext& context) {
  open_file(context);
  terminal_ = options_.progress && isatty(STDERR_FILENO) != 0;
  start_ = Clock::now();
  start_update_ = context.update;
  restart_window();
  const int64_t total = run_length(context);
  print(c10::str("training in mode ", context.mode, " from update ", of_total(context.update, total)));
  write_line(text_of({{"kind", "start"}, {"mode", context.mode}, {"step", context.update}, {"updates", total}}));
}

void LoggerHook::after_train_iter(TrainContext& context) {
  update_seconds_ += context.update_seconds;
  data_seconds_ += context.data_seconds;
  ++window_updates_;
  const int64_t total = run_length(context);
  const bool last = context.update == total || !context.stop_reason.empty();
  if (context.update % options_.interval == 0 || last) {
    log_update(context, total);
  } else if (terminal_) {
    draw_progress(context, total);
  }
}

void LoggerHook::after_val_epoch(TrainContext& context) { log_metrics(context, "val"); }
void LoggerHook::after_test_epoch(TrainContext& context) { log_metrics(context, "test"); }

void LoggerHook::on_exception(TrainContext& context) {
  print(c10::str("training failed at update ", context.update, ": ", context.error));
  write_line(text_of({{"kind", "error"}, {"mode", context.mode}, {"error", context.error}, {"step", context.update}}));
}

void LoggerHook::after_train(TrainContext& context) {
  if (context.error.empty()) {
    const double seconds = seconds_between(start_, Clock::now());
    const std::string reason = context.stop_reason.empty() ? "done" : context.stop_reason;
    print(c10::str("training ends at update ", context.update, " after ", duration(seconds), ": ", reason));
    write_line(text_of({{"kind", "stop"},
                        {"mode", context.mode},
                        {"reason", reason},
                        {"seconds", seconds},
                        {"epoch", shown_epoch(context)},
                        {"step", context.update}}));
  }
  file_.close();
  terminal_ = false;
}

void LoggerHook::restart_window() {
  window_start_ = Clock::now();
  update_seconds_ = data_seconds_ = 0;
  window_updates_ = 0;
}

LoggerHook::Times LoggerHook::window_times() const {
  const auto count = static_cast<double>(std::max<int64_t>(window_updates_, 1));
  // Nobody measures updates without IterTimerHook; then a line's updates share the time since the line before.
  const double seconds = update_seconds_ > 0 ? update_seconds_ : seconds_between(window_start_, Clock::now());
  return {seconds / count, data_seconds_ / count};
}

// By the mean over this run so far, validation and checkpoints included; 0 if there is nothing to go by.
double LoggerHook::eta_seconds(const TrainContext& context, int64_t total) const {
  const int64_t done = context.update - start_update_;
  if (done <= 0 || total <= 0) return 0;
  const double mean = seconds_between(start_, Clock::now()) / static_cast<double>(done);
  return mean * static_cast<double>(total - context.update);
}

void LoggerHook::log_update(const TrainContext& context, int64_t total) {
  const Values values = read(*context.output);
  const Times times = window_times();
  const double lr = learning_rate(context);

  std::string text = c10::str("update ", of_total(context.update, total), "  epoch ",
                              of_total(shown_epoch(context), context.max_epochs), "  lr ", formatted("%.2e", lr));
  for (const auto& [name, value] : values) text += "  " + name + " " + number(value);
  text += "  time " + formatted("%.1f", times.update * 1e3) + " ms (data " + formatted("%.1f", times.data * 1e3) + ")";
  if (total > 0) text += "  eta " + duration(eta_seconds(context, total));
  print(text);

  Json line = {{"kind", "train"},
               {"mode", context.mode},
               {"lr", json_number(lr)},
               {"data_time", times.data},
               {"time", times.update},
               {"epoch", shown_epoch(context)},
               {"iter", context.update_in_epoch},
               {"step", context.update}};
  for (const auto& [name, value] : values) put(line, name, value);
  write_line(text_of(line));

  last_loss_ = values.empty() ? "" : "  " + values.front().first + " " + number(values.front().second);
  restart_window();
}

void LoggerHook::log_metrics(const TrainContext& context, const char* kind) {
  std::string text = c10::str(kind, "  update ", of_total(context.update, run_length(context)));
  Json line = {{"kind", kind}, {"mode", context.mode}, {"epoch", shown_epoch(context)}, {"step", context.update}};
  for (const auto& [name, value] : context.metrics) {
    text += "  " + name + " " + number(value);
    put(line, name, value);
  }
  print(text);
  write_line(text_of(line));
}

void LoggerHook::open_file(const TrainContext& context) {
  std::string path = options_.file;
  if (path.empty() && !context.work_dir.empty()) path = context.work_dir + "/log.jsonl";
  if (path.empty()) return;

  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code failed;
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  const bool half_a_line = ends_in_half_a_line(path);
  errno = 0;
  file_.close();
  file_.clear();
  file_.open(path, std::ios::app);
  if (!file_) {
    throw ConfigError(c10::str("[LoggerHook] found log file '", path, "' that cannot be written (",
                               failed ? failed.message() : std::strerror(errno),
                               "), expected a writable place; change work_dir (now '", context.work_dir,
                               "') or the file of the logger"));
  }
  if (half_a_line) file_ << '\n';
}

void LoggerHook::write_line(const std::string& line) {
  if (!file_.is_open()) return;
  file_ << line << '\n' << std::flush;
  if (file_) return;
  // A log is not worth a run: say it once and go on.
  log_error("[LoggerHook] the log file cannot be written any more (is the disk full?); its lines end here");
  file_.close();
}

void LoggerHook::draw_progress(const TrainContext& context, int64_t total) {
  const Clock::time_point now = Clock::now();
  if (seconds_between(drawn_at_, now) < 0.1) return;
  drawn_at_ = now;

  std::string text;
  if (total > 0) {
    constexpr int64_t kCells = 20;
    const int64_t done = std::clamp<int64_t>(context.update * kCells / total, 0, kCells);
    text = "[" + std::string(static_cast<std::size_t>(done), '=') +
           std::string(static_cast<std::size_t>(kCells - done), ' ') + "] ";
  }
  text += of_total(context.update, total) + last_loss_;
  if (total > 0) text += "  eta " + duration(eta_seconds(context, total));
  text.resize(std::min<std::size_t>(text.size(), 79));
  const std::size_t width = text.size();
  if (width < drawn_width_) text.append(drawn_width_ - width, ' ');
  // The cursor goes back to the start of the line, so that whoever logs next writes over the progress.
  std::fprintf(stderr, "%s\r", text.c_str());
  drawn_width_ = width;
}

void LoggerHook::print(const std::string& line) {
  if (drawn_width_ > 0) std::fprintf(stderr, "%*s\r", static_cast<int>(drawn_width_), "");
  drawn_width_ = 0;
  log_info(line);
}

}  // namespace duet
