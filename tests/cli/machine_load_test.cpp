#include "cli/machine_load.h"
#include <gtest/gtest.h>

namespace duet {
namespace {

std::string all_of(const MachineLoad& load) {
  std::string text;
  for (const std::string& warning : warnings_of(load)) text += warning + "\n";
  return text;
}

TEST(MachineLoad, IsSilentWhereNothingIsInTheWay) {
  EXPECT_EQ(all_of({.cores = 8, .running = 0.3, .threads = 8, .workers = 4}), "");
  EXPECT_EQ(all_of({.cores = 8, .running = 7, .threads = 1, .workers = 2}), "");
  EXPECT_EQ(all_of({.cores = 2, .running = 2, .threads = 2, .threads_spin = false}), "");
}

TEST(MachineLoad, NamesTheSettingThatHelps) {
  EXPECT_NE(all_of({.cores = 2.5, .threads = 16}).find("OMP_NUM_THREADS=2"), std::string::npos);
  EXPECT_NE(all_of({.cores = 2, .running = 2.1, .threads = 2}).find("OMP_WAIT_POLICY=passive"), std::string::npos);
  EXPECT_NE(all_of({.cores = 2, .workers = 5}).find("num_workers is 5"), std::string::npos);
}

TEST(MachineLoad, IsReadOfThisMachine) {
  const MachineLoad load = read_machine_load(3);
  EXPECT_GE(load.cores, 1);
  EXPECT_GE(load.threads, 1);
  EXPECT_GE(load.running, 0);
  EXPECT_EQ(load.workers, 3);
}

}  // namespace
}  // namespace duet
