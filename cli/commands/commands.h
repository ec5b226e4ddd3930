#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "cli/config/run_config.h"
#include "distributed/init_distributed.h"

namespace duet {

// What the commands of the program take. Each returns the exit code, or throws.

struct ConfigArguments {
  std::string config;
  std::vector<std::string> overrides;  // key=value
  std::string mode;                    // empty: the config's
  std::string json;                    // empty: none
};

struct TrainArguments : ConfigArguments {
  LaunchFlags launch;
  std::string resume;     // none, auto, or a checkpoint; empty: none, or auto if a launcher has started the run anew
  std::string load_from;  // weights to start from; empty: the config's load_from
  std::string dry_run;    // steps of a dry run; empty: as the config says
};

struct EvalArguments : ConfigArguments {
  LaunchFlags launch;
  std::string checkpoint;  // best, latest, or a folder; empty: best if there is one, else latest
};

struct PredictArguments : EvalArguments {
  std::string output;  // folder; empty: <work_dir>/predictions
};

struct CompareArguments : ConfigArguments {
  int64_t steps = 100;
};

struct ExplainArguments : ConfigArguments {};

struct InspectArguments {
  std::string checkpoint;
  std::string json;
};

struct ExportArguments {
  std::string checkpoint;         // or any file of weights
  std::string file;               // *.safetensors, *.pt
  std::string weights = "model";  // or the name of an average
  std::string json;
};

struct DoctorArguments {
  std::string json;
};

struct HelpArguments {
  std::string topic;  // a key or a type; empty: an overview
};

// Starts `program` with the words after launch, several times; returns only for --help.
int launch_command(const std::vector<std::string>& words, const std::string& program);
int train_command(const TrainArguments& arguments);
int eval_command(const EvalArguments& arguments);
int predict_command(const PredictArguments& arguments);
int compare_command(const CompareArguments& arguments);
int explain_command(const ExplainArguments& arguments);
int inspect_command(const InspectArguments& arguments);
int export_command(const ExportArguments& arguments);
int doctor_command(const DoctorArguments& arguments);
int help_command(const HelpArguments& arguments);

// The config file with the overrides, --mode and --load-from applied.
RunConfig load_run_config(const ConfigArguments& arguments, const std::string& load_from = {},
                          const std::string& dry_run = {});

}  // namespace duet
