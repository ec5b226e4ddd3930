#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "cli/build.h"
#include "cli/config/run_config.h"
#include "core/trainer.h"
#include "distributed/communicator.h"

namespace duet {

// Of generate: how a text goes on.
struct GenerateOptions {
  std::string prompt = "\n";
  int64_t length = 200;      // characters
  double temperature = 1.0;  // scores are divided by it; 0: always the most likely character
  int64_t top_k = 0;         // only the most likely ones; 0: all
  int64_t seed = 0;
};

// What the commands of the program take; each looks at its own.
struct Arguments {
  std::string config;
  std::vector<std::string> overrides;  // key=value
  std::string mode;                    // empty: the config's
  std::string json;                    // file for the results; empty: none
  LaunchFlags launch;
  std::string resume;  // none, auto, or a checkpoint; empty: none, or auto if a launcher has started the run anew
  std::string hyper_parameters;  // of a resume, whose hold where they differ: checkpoint, config; empty: checkpoint
  std::string load_from;         // weights to start from; empty: the config's load_from
  std::string dry_run;           // steps of a dry run; empty: as the config says
  std::string checkpoint;  // best, latest, a folder, or a file of weights; empty: best if there is one, else latest
  std::string output;      // predict: folder; empty: <work_dir>/predictions. report: file
  int64_t steps = 100;     // compare: of each mode
  bool bisect = false;     // compare: name the first step and tensor that differ
  std::string file;        // export: *.safetensors, *.pt
  std::string weights = "model";  // export: or the name of an average
  std::string model;              // export: the file that the model came from
  std::vector<std::string> runs;  // report, diff: folders of runs
  std::string folder;             // list: the folder above the runs
  GenerateOptions generate;
  int64_t jobs = 1;  // sweep: runs at once
  int64_t profile_steps = 20;
  bool auto_scale_lr = false;  // train: as the key auto_scale_lr.enable
  std::string find;            // lr or batch_size
  LrFinderOptions lr_finder;
  double memory_share = 0.8;  // find batch_size
  bool stop_bad = false;      // sweep: stop runs that are worse than half of the others
  std::string topic;          // help: a key or a type; empty: an overview
  bool markdown = false;      // help: everything there is, as Markdown
};

constexpr int kInterrupted = 75;  // EX_TEMPFAIL: the state is saved, call again

// The commands. Each returns the exit code, or throws.

int train_command(const Arguments& arguments);
int eval_command(const Arguments& arguments);
int predict_command(const Arguments& arguments);
int generate_command(const Arguments& arguments);
int sweep_command(const Arguments& arguments);
int find_command(const Arguments& arguments);
int profile_command(const Arguments& arguments);
int compare_command(const Arguments& arguments);
int explain_command(const Arguments& arguments);
int inspect_command(const Arguments& arguments);
int export_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);
int report_command(const Arguments& arguments);
int list_command(const Arguments& arguments);
int diff_command(const Arguments& arguments);
int help_command(const Arguments& arguments);
// Starts `program` with the words after launch, several times; returns only for --help.
int launch_command(const std::vector<std::string>& words, const std::string& program);

// What train does for a config with `fast_dev_run`: every part of a run in small, in a temporary folder. `json` gets
// the report of the steps, if it is a file.
int dry_run(const RunConfig& config, const std::string& json);

// A model with the weights of a checkpoint and the data to run it on.
struct Evaluation {
  std::string checkpoint;       // its folder, or a file of weights
  std::optional<int64_t> step;  // that it was saved after; nothing for a file of weights
  Run run;                      // hooks included; they have what the checkpoint holds of them; run.test is the data
};

// `checkpoint`: as --checkpoint says. With `output` predictions are written into that folder. All processes of the run
// call it together. A file of weights must hold exactly those of the model.
Evaluation open_evaluation(const RunConfig& config, const std::vector<DataConfig>& data, const std::string& checkpoint,
                           const std::string& output = "");

// One run of a sweep: what it sets, "lr=0.1" by the last part of a key where that tells keys apart.
struct SweepPoint {
  std::string name;                    // "lr=0.1,batch_size=32": its folder
  std::vector<std::string> overrides;  // key=value, those that are the same in all runs too
};

// Every combination of the values in `assignments`, where key=a,b,c stands for three; commas in brackets, braces and
// quotes belong to a value. The last key changes fastest.
std::vector<SweepPoint> sweep_points(const std::vector<std::string>& assignments);

// A few steps with one batch size.
struct BatchSizeTrial {
  int64_t batch_size = 0;
  bool fits = false;
  int64_t bytes = 0;              // most in use; 0: not measured, memory ran out
  double samples_per_second = 0;  // 0: not run
};

// Tries 2, 4, 8, ... samples until one does not fit into `bytes`, or all there are (`most`), then halves the distance
// between it and the largest that fits, to 1/16 of that. `is_careful`, for a CPU, whose system ends who takes too much:
// runs nothing that needs too much by the growth so far, and stops where two doublings bring less than 5 % of speed.
std::vector<BatchSizeTrial> search_batch_size(int64_t most, int64_t bytes, bool is_careful,
                                              const std::function<BatchSizeTrial(int64_t batch_size)>& run);

// With graph.fallback strict a step that cannot be captured is an error, GraphError.
void refuse_if_strict(const RunConfig& config, const StepExplanation& explanation);

// The config file with the overrides, --mode, --load-from and --dry-run applied.
RunConfig load_run_config(const Arguments& arguments);

}  // namespace duet
