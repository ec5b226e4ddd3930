#include "base/detail/machine_load.h"
#include <cmath>
#include <filesystem>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;

TEST(MachineLoad, IsSilentWhereNothingIsInTheWay) {
  EXPECT_EQ(thread_warning({.cores = 8, .running = 0.3, .threads = 8}), "");
  EXPECT_EQ(thread_warning({.cores = 8, .running = 7, .threads = 1}), "");
}

TEST(MachineLoad, NamesTheSettingThatHelps) {
  EXPECT_NE(thread_warning({.cores = 2.5, .threads = 16}).find("OMP_NUM_THREADS=2"), std::string::npos);
  const MachineLoad busy{.cores = 2, .running = 2.1, .threads = 2};
  EXPECT_NE(thread_warning(busy).find("OMP_NUM_THREADS=1"), std::string::npos);
}

// A machine's files of cgroups, in a folder.
class Cgroups : public ::testing::Test {
 protected:
  double cores(const std::string& memberships) const {
    return cgroup_cores(folder_.write("cgroup", memberships), folder_.path());
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, text);
  }
  TempDir folder_;
};

TEST_F(Cgroups, TheSmallestQuotaOfAllGroupsAboveCounts) {
  EXPECT_TRUE(std::isinf(cores("0::/\n")));
  write("cpu.max", "max 100000\n");
  write("user.slice/cpu.max", "150000 100000\n");
  write("user.slice/job/cpu.max", "400000 100000\n");
  EXPECT_TRUE(std::isinf(cores("0::/\n")));
  EXPECT_EQ(cores("0::/user.slice/job\n"), 1.5);
  write("user.slice/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores("0::/user.slice/job\n"), 0.5);
}

TEST_F(Cgroups, AContainerMountsItsOwnGroup) {
  write("cpu.max", "300000 100000\n");
  EXPECT_EQ(cores("0::/\n"), 3);
  EXPECT_EQ(cores("0::/docker/4f0c\n"), 3) << "a path that is outside of the container";
  EXPECT_EQ(cores("no such file"), 3);
}

}  // namespace
}  // namespace duet
