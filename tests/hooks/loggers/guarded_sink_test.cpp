#include "hooks/loggers/guarded_sink.h"
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include "hooks/loggers/sinks.h"
#include "tests/support/full_disk.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::stderr_of;

// What the test and its sink share.
struct Place {
  bool is_full = false;
  std::set<int64_t> refused;  // steps that it never takes
  std::vector<int64_t> steps;
  int64_t tries = 0;
};

class ChangingSink : public LogSink {
 public:
  explicit ChangingSink(Place& place) : place_(place) {}
  void write(const LogRecord& record) override {
    ++place_.tries;
    if (place_.is_full) throw std::runtime_error("no space left");
    if (place_.refused.contains(record.step)) throw std::runtime_error("not that one");
    place_.steps.push_back(record.step);
  }

 private:
  Place& place_;
};

class GuardedSinkTest : public ::testing::Test {
 protected:
  void write(LogRecord record) {
    sink.put(std::move(record));
    sink.write_waiting();
  }
  void write(int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) write({.kind = "train", .step = step});
  }

  Place place;
  GuardedSink sink{std::make_unique<ChangingSink>(place)};
};

TEST_F(GuardedSinkTest, WritesInOrderWhatCameWhileThePlaceWasFull) {
  const std::string text = stderr_of([&] {
    write(1, 2);
    place.is_full = true;
    write(3, 40);
    place.is_full = false;
    sink.flush();
    write(41, 41);
    sink.finish();
  });
  ASSERT_EQ(place.steps.size(), 41U);
  for (std::size_t i = 0; i < place.steps.size(); ++i) ASSERT_EQ(place.steps[i], static_cast<int64_t>(i) + 1);
  EXPECT_THAT(text, HasSubstr("training goes on and they are kept: no space left"));
  EXPECT_EQ(text.find("they are kept"), text.rfind("they are kept")) << "told once:\n" << text;
  EXPECT_THAT(text, HasSubstr("written again, none is lost"));
}

TEST_F(GuardedSinkTest, TriesSeldomWhereThePlaceStaysFull) {
  stderr_of([&] {
    place.is_full = true;
    write(1, 6400);
  });
  EXPECT_LT(place.tries, 1000);
  EXPECT_GT(place.tries, 50);
}

TEST_F(GuardedSinkTest, LosesSeveralInARowThatCanNeverBeWritten) {
  place.refused = {3, 4, 5};
  const std::string text = stderr_of([&] {
    write(1, 20);
    sink.flush();
  });
  EXPECT_EQ(place.steps.size(), 17U);
  EXPECT_THAT(text, HasSubstr("lost are 3 records (steps 3 to 5): not that one"));
}

TEST_F(GuardedSinkTest, SaysAtTheEndWhatIsLost) {
  const std::string text = stderr_of([&] {
    write(1, 2);
    place.is_full = true;
    write(3, 9);
    sink.finish();
    sink.finish();
  });
  EXPECT_THAT(place.steps, ElementsAre(1, 2));
  const std::string said = "7 records (steps 3 to 9) could not be written in one place and are lost: no space left";
  EXPECT_THAT(text, HasSubstr(said));
}

TEST_F(GuardedSinkTest, HoldsNoMoreMemoryThanItsBound) {
  constexpr int64_t kSide = 2048;  // 12 MiB a picture
  const std::string text = stderr_of([&] {
    place.is_full = true;
    for (int64_t step = 1; step <= 8; ++step) {
      write({.kind = "image", .step = step, .images = {{"a", at::zeros({kSide, kSide, 3}, at::kByte)}}});
    }
    place.is_full = false;
    sink.flush();
  });
  EXPECT_THAT(place.steps, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(text, HasSubstr("lost are 3 records (steps 6 to 8)"));
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The only file below `folder`.
std::filesystem::path file_in(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) return entry.path();
  }
  return {};
}

using Make = std::unique_ptr<LogSink> (*)(const std::string& folder);
struct Format {
  const char* name;
  Make make;
};

class FullDiskOf : public ::testing::TestWithParam<Format> {};

// Twelve lines; the disk is full from the sixth to the ninth.
TEST_P(FullDiskOf, LeavesTheFileAsIfItHadNeverBeenFull) {
  const auto run = [&](const std::string& folder, bool fills_up) {
    GuardedSink sink(GetParam().make(folder));
    const auto write = [&](int64_t step) {
      sink.put({.kind = step == 1 ? "start" : "train",
                .step = step,
                .wall_time = 1.7e9 + static_cast<double>(step),
                .values = {{"loss", 0.5 * static_cast<double>(step)}},
                .line = "line " + std::string(200, 'x')});
      sink.write_waiting();
    };
    for (int64_t step = 1; step <= 5; ++step) write(step);
    if (fills_up) {
      const FullDisk disk(std::filesystem::file_size(file_in(folder)) + 20);  // room for half a line
      for (int64_t step = 6; step <= 9; ++step) write(step);
    } else {
      for (int64_t step = 6; step <= 9; ++step) write(step);
    }
    for (int64_t step = 10; step <= 12; ++step) write(step);
    sink.finish();
  };
  const TempDir calm, full;
  run(calm.path().string(), false);
  const std::string text = stderr_of([&] { run(full.path().string(), true); });
  EXPECT_THAT(text, HasSubstr("none is lost"));
  EXPECT_THAT(text, Not(HasSubstr("lost are")));
  const std::string expected = bytes_of(file_in(calm.path())), found = bytes_of(file_in(full.path()));
  EXPECT_EQ(found.size(), expected.size());
  if (GetParam().name != std::string("tensorboard")) {  // its header has the time
    EXPECT_EQ(found, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, FullDiskOf,
    ::testing::Values(Format{"jsonl", [](const std::string& folder) { return jsonl_sink(folder + "/log.jsonl"); }},
                      Format{"tensorboard", [](const std::string& folder) { return tensorboard_sink(folder); }},
                      Format{"wandb",
                             [](const std::string& folder) {
                               return wandb_sink({.type = "wandb", .folder = folder, .id = "abc"});
                             }}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace duet
