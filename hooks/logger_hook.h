#pragma once

#include <duet/core/hook.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace duet {

struct LoggerHookOptions {
  int64_t interval = 50;  // updates between lines; each reads loss, logged values and norm from the device
  std::string file = "";  // JSON lines are appended here; empty: <work_dir>/log.jsonl, or nowhere without a work_dir
  bool progress = true;   // a progress line on stderr between log lines, if that is a terminal

  // Throws ConfigError naming the field and its range.
  void validate() const;
};

// Writes a line to the log and a JSON object to the log file every `interval` updates, at the last update, and for
// results of evaluations. Between lines nothing is read from the device.
//
// JSON lines have a "kind": "train" (mode, lr, data_time, time, loss, the task's values, grad_norm, epoch, iter, step),
// "val" and "test" (mode, the metrics, epoch, step), "start", "stop" (reason, seconds) and "error" (error). Times are
// seconds per update since the line before, step counts finished updates, iter those of the epoch. NaN and infinities
// are the strings "nan", "inf" and "-inf". A task's value whose name is taken gets "log." in front.
class LoggerHook : public Hook {
 public:
  // Throws ConfigError for options out of range.
  explicit LoggerHook(LoggerHookOptions options = {});

  std::string name() const override { return "logger"; }
  int priority() const override { return kBelowNormal; }

  // Opens the file; throws ConfigError naming it and work_dir if it cannot be written.
  void before_train(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void after_val_epoch(TrainContext& context) override;
  void after_test_epoch(TrainContext& context) override;
  void on_exception(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Values = std::vector<std::pair<std::string, double>>;
  struct Times {
    double update = 0, data = 0;  // mean seconds of one update
  };

  void restart_window();
  Times window_times() const;
  double eta_seconds(const TrainContext& context, int64_t total) const;
  void log_update(const TrainContext& context, int64_t total);
  void log_metrics(const TrainContext& context, const char* kind);
  void open_file(const TrainContext& context);
  void write_line(const std::string& line);
  void draw_progress(const TrainContext& context, int64_t total);
  void print(const std::string& line);

  LoggerHookOptions options_;
  std::ofstream file_;
  Clock::time_point start_ = Clock::now();  // of training, with the updates finished by then
  int64_t start_update_ = 0;

  Clock::time_point window_start_ = start_;  // of the updates since the last line
  double update_seconds_ = 0;
  double data_seconds_ = 0;
  int64_t window_updates_ = 0;

  bool terminal_ = false;  // whether progress is drawn
  Clock::time_point drawn_at_;
  std::size_t drawn_width_ = 0;
  std::string last_loss_;
};

}  // namespace duet
