#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <nlohmann/json_fwd.hpp>
#include "base/device.h"
#include "core/hook.h"
#include "graph/graph_options.h"
#include "metrics/metric.h"

namespace duet {

class BaseTrainer;
class GraphTrainer;
struct Run;

// Of its parameters and buffers, as they are now.
std::string weights_hash(BaseTrainer& trainer);

// What was measured of every step.
struct Measurements {
  std::vector<double> losses;
  std::vector<double> step_us;  // from before_train_iter to the end of the step
  std::vector<double> data_us;  // waiting for its data
  std::vector<double> cpu_us;   // CPU time of all threads of the process in the step
};

struct Spread {
  double median = 0;
  double min = 0;
};
Spread spread(std::vector<double> values);  // zeros if empty

// Records loss and time of every step into `target`, which must outlive the trainer's run. Losses are cloned on the
// device and read every 50 steps: no sync per step. On a GPU, where a launch returns early, a step's time is the
// mean over those 50; validation and checkpoints end such a block, and are not part of it.
class MeasureHook : public Hook {
 public:
  // Asks the run to stop after `max_steps` steps; 0: never.
  explicit MeasureHook(Measurements& target, int64_t max_steps = 0) : target_(target), max_steps_(max_steps) {}

  std::string name() const override { return "measure"; }
  int priority() const override { return kHighest; }

  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void before_val(TrainContext&) override { flush(); }
  void before_save_checkpoint(TrainContext&) override { flush(); }
  void after_train(TrainContext& context) override;

 private:
  using Clock = std::chrono::steady_clock;
  void flush();

  Measurements& target_;
  int64_t max_steps_;
  std::vector<at::Tensor> pending_;
  Clock::time_point block_start_, step_start_;
  double cpu_start_ = 0;
};

// What `--json` of train and compare says of one mode: counters, weights and captures of a run that has ended, the
// steps before a resume included; `measured` is of this process.
nlohmann::ordered_json report_of(Run& run, const std::string& mode, const Measurements& measured);

// Whether one form of step is captured, or why not, and how often it was replayed.
nlohmann::ordered_json signature_json(const SignatureReport& signature);

// What graph mode left out, as a checkpoint says it; null: unknown.
void put_unchecked(nlohmann::ordered_json& report, const std::optional<UncheckedSteps>& unchecked);

// The times of its steps alone, in a report that report_of() made.
void put_times(nlohmann::ordered_json& report, const Measurements& measured);

// Fails early with ConfigError if `path` cannot be written; an empty path is fine.
void check_writable(const std::string& path);
// Writes `json` to `path`, if there is one. Throws ConfigError if that fails.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

// Says that `command` was stopped by a signal with nothing to save. Returns its exit code: 128 and the signal's number.
int report_stop(const std::string& command);

// "1.25 GiB"
std::string readable_bytes(int64_t bytes);

// What the program says of an error, and returns for it.
struct Failure {
  std::string text;
  int exit_code = 1;
};

// Without the C++ frames of LibTorch's texts, which help nobody here.
Failure failure_of(const std::exception_ptr& error);

// Where torchrun asks for it (TORCHELASTIC_ERROR_FILE), writes the text in its format, so that its summary shows it.
void write_error_file(const std::string& text);

// What is noted of a training for --json.
struct TrainRecord {
  std::string mode;
  Measurements measured{};
  std::vector<std::pair<int64_t, MetricValues>> validations{};  // by the step that they came after
};

// How it ended: by `error`, if there is one.
struct TrainEnd {
  std::exception_ptr error;
  int exit_code = 0;
};

// Writes report_of() the run, its last and best results, state, exit code and reason to `path`.
void write_train_record(const std::string& path, Run& run, const TrainRecord& record, const TrainEnd& end);

// Files beside the log and the config for those who look at the run later. A run does not end for want of these: what
// cannot be written is a warning.

// {"versions": {...}, "machine": {...}}
nlohmann::ordered_json environment_json();
// environment.json: the same. Removes the graph.json of a run before.
void write_run_environment(const std::string& work_dir);
// graph.json: how many steps were replayed, and of each signature whether it is captured or why not.
void write_graph_coverage(const std::string& work_dir, const GraphTrainer& trainer);

}  // namespace duet
