#include "tests/support/full_disk.h"
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <gtest/gtest.h>
#include "hooks/loggers/async_sink.h"
#include "hooks/loggers/sinks.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using testing::stderr_of;

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The only file below `folder`.
std::filesystem::path only_file_in(const std::filesystem::path& folder) {
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
    std::vector<std::unique_ptr<LogSink>> sinks;
    sinks.push_back(GetParam().make(folder));
    AsyncSink sink(std::move(sinks));
    const auto write = [&](int64_t step) {
      sink.put({.kind = step == 1 ? "start" : "train",
                .step = step,
                .wall_time = 1.7e9 + static_cast<double>(step),
                .values = {{"loss", 0.5 * static_cast<double>(step)}},
                .line = "line " + std::string(200, 'x')});
      sink.flush();
    };
    for (int64_t step = 1; step <= 5; ++step) write(step);
    std::optional<FullDisk> disk;
    if (fills_up) disk.emplace(std::filesystem::file_size(only_file_in(folder)) + 20);  // room for half a line
    for (int64_t step = 6; step <= 9; ++step) write(step);
    disk.reset();
    for (int64_t step = 10; step <= 12; ++step) write(step);
  };
  const TempDir calm, full;
  run(calm.path().string(), false);
  const std::string text = stderr_of([&] { run(full.path().string(), true); });
  EXPECT_NE(text.find("none is lost"), std::string::npos) << text;
  EXPECT_EQ(text.find("lost records"), std::string::npos) << text;
  const std::string expected = contents_of(only_file_in(calm.path())), found = contents_of(only_file_in(full.path()));
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
