#pragma once

#include <duet/cli/run_config.h>

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// What the commands of the program take. Each returns the exit code, or throws.

struct ConfigArguments {
  std::string config;
  std::vector<std::string> overrides;  // key=value
  std::string mode;                    // empty: the config's
  std::string json;                    // empty: none
};

struct TrainArguments : ConfigArguments {
  std::string resume = "none";  // none, auto, or a checkpoint
};

struct EvalArguments : ConfigArguments {
  std::string checkpoint;  // best, latest, or a folder; empty: best if there is one, else latest
};

struct CompareArguments : ConfigArguments {
  int64_t updates = 100;
};

struct ExplainArguments : ConfigArguments {};

struct InspectArguments {
  std::string checkpoint;
  std::string json;
};

struct DoctorArguments {
  std::string json;
};

int train_command(const TrainArguments& arguments);
int eval_command(const EvalArguments& arguments);
int compare_command(const CompareArguments& arguments);
int explain_command(const ExplainArguments& arguments);
int inspect_command(const InspectArguments& arguments);
int doctor_command(const DoctorArguments& arguments);

// The config file with the overrides and --mode applied.
RunConfig load_run_config(const ConfigArguments& arguments);

}  // namespace duet
