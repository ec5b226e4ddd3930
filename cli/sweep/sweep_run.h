#pragma once

#include <string>
#include <vector>
#include "cli/runs/run_folder.h"

namespace duet {

// A run of a sweep: `duet train` in a process of its own.
class SweepRun {
 public:
  // `words` follow "train". What the process prints goes to output.txt in the folder, which is there.
  SweepRun(std::string folder, const std::vector<std::string>& words);
  ~SweepRun();
  SweepRun(const SweepRun&) = delete;
  SweepRun& operator=(const SweepRun&) = delete;

  const std::string& folder() const { return folder_; }
  // Whether it has ended; `exit_code` then holds.
  bool has_ended();
  int exit_code() const { return exit_code_; }
  // Asks it to stop and save.
  void stop() const;

 private:
  std::string folder_;
  int process_ = -1;
  int exit_code_ = 0;
};

// Why `run` need not go on: its best value so far is worse than the median of what the others had reached by that step
// (the median stopping rule of Golovin et al. 2017). Empty: it may still become the best, or fewer than three others
// have a value.
std::string reason_to_stop(const RunFolder& run, const std::vector<RunFolder>& others);

}  // namespace duet
