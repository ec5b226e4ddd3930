#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

class AsyncSink;
class LogWindow;

using LogValue = std::variant<int64_t, double, std::string>;
using LogValues = std::vector<std::pair<std::string, LogValue>>;

struct LogImage {
  std::string name;   // "val/0007"
  at::Tensor pixels;  // uint8 [height, width, 3], RGB, on the CPU
};

// One thing that is worth a line: what LoggerHook hands to every sink.
struct LogRecord {
  std::string kind;      // train, epoch, val, test, start, stop, error, void, text, image, histogram, progress
  int64_t step = 0;      // the horizontal axis: finished steps, or epochs for evaluations logged by epoch
  double wall_time = 0;  // seconds since 1970
  LogValues values{};    // in the order to show; numbers are what a chart draws
  std::string line{};    // the same for people; empty: not for the terminal
  std::vector<LogImage> images{};
  NamedHistograms histograms{};
};

// Somewhere that records go. Called from one thread: the training thread if it keeps_log_order(), else another.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // Throws std::exception if the record cannot be written; it is then given again later, with those that came since.
  virtual void write(const LogRecord& record) = 0;
  // Brings everything written so far to the file.
  virtual void flush() {}

  // Whether pictures are worth making for it.
  virtual bool takes_images() const { return true; }
  // Whether records of kind "progress" reach it: a line that the next one takes the place of.
  virtual bool shows_progress() const { return false; }
  // Whether its lines stand among others of the log: the training thread writes them, in the order of what happens.
  virtual bool keeps_log_order() const { return false; }
};

// A place that lines go to, by name. Empty fields take their defaults.
struct LogSinkOptions {
  std::string type{};  // terminal, jsonl, tensorboard, wandb
  std::string file{};  // jsonl; default LoggerHookOptions::file
  // tensorboard, wandb; default <work_dir>/tensorboard, <work_dir>/wandb, and nowhere without a work_dir
  std::string folder{};
  std::string project{};  // wandb, as the three below; default "duet"
  std::string name{};     // shown for the run; W&B makes one up
  std::string entity{};   // user or team; that of whoever uploads
  std::string id{};       // the logger's run_id

  static const OptionFields& fields();
};

// In place of a number of steps: those of the epoch that runs, those of the whole run. At most the last million.
inline constexpr int64_t kEpochWindow = 0;
inline constexpr int64_t kGlobalWindow = -1;

// One number made of the last values of a name; mmengine's custom_cfg.
struct LogStatistic {
  std::string data_src{};            // the name it is made of: loss, time, a value that the task logs
  std::string method_name = "mean";  // mean, median, min, max, current
  int64_t window_size = 10;          // steps, kEpochWindow or kGlobalWindow
  std::string log_name{};            // how it is logged; empty: it takes the place of data_src

  static const OptionFields& fields();
};

struct LogWindowOptions {
  int64_t window_size = 10;  // steps that smoothed numbers are the mean of; others are logged as they are
  // Names that are smoothed: those that hold a match of this regular expression.
  std::string mean_pattern = "loss(?!_scale)|time|grad_norm";
  std::vector<LogStatistic> custom_cfg{};
};

struct LoggerHookOptions {
  int64_t interval = 50;             // steps between lines; each reads the device once
  std::string file = "";             // of the sink jsonl; empty: <work_dir>/log.jsonl, or nowhere without a work_dir
  bool progress = true;              // the sink terminal draws a progress bar between lines, if stderr is a terminal
  bool by_epoch = false;             // the interval counts from the beginning of each epoch, not of the run
  bool ignore_last = true;           // by_epoch: no line for the rest of an epoch that has had one
  bool log_metric_by_epoch = false;  // results of evaluations lie at their epoch, not at their step
  LogWindowOptions window{};         // which numbers are smoothed, and how
  std::vector<LogSinkOptions> sinks = {{"terminal"}, {"jsonl"}};
  std::string config = "{}";  // what the run was configured with, a JSON object: for the sink wandb
  bool model_summary = true;  // the model's parts and sizes when training starts

  static const OptionFields& fields();
};

// Writes a line every `interval` steps, at the run's last step, and for results of evaluations, with the values and
// gauges of RunLog and what the clock has. Between lines nothing is read from the device. Sinks write on threads of
// their own; when after_run returns, or the hook goes, or the program ends by exit(), all is written.
//
// JSON lines have a "kind": "train" (lr, data_time, time, loss, the task's values, grad_norm, gauges, epoch, iter,
// step), "epoch" (epoch_time, epoch, step), "val" and "test" (the metrics, epoch, step), "start", "stop" (reason,
// seconds), "error" (error), "void" (last_step: the lines above of the steps after `step` up to this one were undone by
// going back), "text" (also "test_error" of a test on its own) and "histogram" ({"counts": [...], "edges": [...]} by
// name).
// Times are seconds per step, step counts finished steps, iter those of the epoch. A name that is taken gets "log."
// in front. A gauge that gives NaN has nothing to say and is left out.
// Its many members are the points of a run at which a line is written.
class LoggerHook : public Hook {
 public:
  // `extra` sinks come after those of the options. Throws ConfigError for options out of range.
  explicit LoggerHook(LoggerHookOptions options = {}, std::vector<std::unique_ptr<LogSink>> extra = {});
  ~LoggerHook() override;

  std::string name() const override { return "logger"; }
  int priority() const override { return kBelowNormal; }

  // Opens the sinks; throws ConfigError naming a file or folder that cannot be written. From here on texts and pictures
  // of TrainContext::log are logged.
  void before_run(TrainContext& context) override;
  void before_train(TrainContext& context) override;
  void before_train_epoch(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void after_val_epoch(TrainContext& context) override;
  void after_test_epoch(TrainContext& context) override;
  void on_exception(TrainContext& context) override;
  void after_train(TrainContext& context) override;
  void after_train_epoch(TrainContext& context) override;
  void after_run(TrainContext& context) override;
  // Going back in a run makes lines void that were logged.
  void after_load_checkpoint(TrainContext& context) override;

  // Takes the place of LoggerHookOptions::config, for one that is complete only once every hook was made. In force if
  // the first run has not begun.
  void set_config(std::string json) { options_.config = std::move(json); }
  // Waits until everything logged so far is written.
  void flush();

  // The values that the next line is made of, so that a resumed run writes the lines of an unbroken one.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void open(TrainContext& context);
  void start_run(TrainContext& context);
  void listen(TrainContext& context);
  void emit(TrainContext& context, LogRecord record);
  // Of the step that is through.
  void emit(TrainContext& context, const char* kind, LogValues values, std::string line);
  bool is_due(const TrainContext& context) const;
  void collect(TrainContext& context);
  void log_step(TrainContext& context);
  void log_failure(TrainContext& context);
  void log_end(TrainContext& context);
  void log_metrics(TrainContext& context, const char* kind);
  void show_progress(TrainContext& context);

  LoggerHookOptions options_;
  std::vector<std::unique_ptr<LogSink>> extra_;  // until they are opened
  std::unique_ptr<AsyncSink> sinks_;
  RunLog::Listening listening_;
  std::unique_ptr<LogWindow> window_;
  std::string run_id_;
  bool started_ = false, told_failure_ = false;

  // Seconds of the steady clock.
  double start_ = 0;     // of training
  double mark_ = 0;      // end of the step before, for runs without IterTimerHook
  double shown_at_ = 0;  // progress
  // Of the steps since the last line.
  struct Line {
    int64_t steps = 0, samples = 0;
    double seconds = 0;
    int64_t epoch = 0, iter = 0;  // of the last step: after the turn of an epoch the context has those of the next
  };
  Line line_;

  int64_t logged_step_ = 0;  // the last that a line of this training tells of
  std::string last_loss_;
};

}  // namespace duet
