#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <gtest/gtest.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {

namespace fs = std::filesystem;
using FileNames = std::set<std::string>;

// Trains nothing, with a CheckpointHook.
class Checkpoint : public ::testing::Test {
 protected:
  TempDir folder;
  FakeRun run;

  void SetUp() override { run.context.work_dir = folder / "run"; }

  std::string root() const { return folder / "run/checkpoints"; }

  // Saves that a thread still writes count.
  void wait_for_saves() const { static_cast<void>(CheckpointStore(folder / "none").find_best()); }

  FileNames saved() const {
    wait_for_saves();
    FileNames names;
    for (const auto& entry : fs::directory_iterator(root())) {
      if (entry.is_directory()) names.insert(entry.path().filename().string());
    }
    return names;
  }

  std::string best() const {
    wait_for_saves();
    std::string name;
    std::getline(std::ifstream(root() + "/best") >> std::ws, name);
    return name;
  }

  void train(CheckpointHook& hook, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      run.state.value = static_cast<double>(run.context.progress.step + 1);
      run.step(hook);
    }
  }

  void begin(CheckpointHook& hook) {
    run.state.hook = &hook;
    hook.before_train(run.context);
  }
  // After a step. What was logged.
  std::string validate(CheckpointHook& hook, const MetricValues& metrics) {
    return testing::stderr_of([&] {
      train(hook, 1);
      run.validation(hook, metrics);
    });
  }

  // The disk fills up: nothing can be made where the checkpoints were.
  void fill_disk() {
    wait_for_saves();
    fs::rename(root(), root() + ".aside");
    std::ofstream(root()) << "a file";
  }
  void free_disk() {
    wait_for_saves();
    fs::remove(root());
    fs::rename(root() + ".aside", root());
  }
};

}  // namespace duet
