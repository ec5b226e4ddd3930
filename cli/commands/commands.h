#pragma once

#include <cstdint>
#include <string>
#include <vector>
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

// What train does for a config with `fast_dev_run`: every part of a run in small. config.dry_run steps as one epoch,
// then as many batches of data.val, data.test and data.predict, with all hooks and metrics. Files go to a temporary
// folder that is removed. `json` gets the report of the steps, if it is a file.
int dry_run(const RunConfig& config, const std::string& json);

// With graph.fallback strict a step that cannot be captured is an error, GraphError.
void refuse_if_strict(const RunConfig& config, const StepExplanation& explanation);

// The config file with the overrides, --mode, --load-from and --dry-run applied.
RunConfig load_run_config(const Arguments& arguments);

}  // namespace duet
