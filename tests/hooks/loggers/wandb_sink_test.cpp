// What the files say is checked by foreign/read_logs.py with wandb's own reader.
#include <filesystem>
#include <regex>
#include <gtest/gtest.h>
#include "base/error.h"
#include "hooks/loggers/sinks.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;

// Names of the run files, like "run-<id>.wandb".
std::multiset<std::string> runs_in(const fs::path& folder) {
  std::multiset<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) names.insert(entry.path().filename().string());
  }
  return names;
}

void run_once(const LogSinkOptions& options, int64_t step) {
  const auto sink = wandb_sink(options);
  sink->write({.kind = "start", .step = step});
}

TEST(WandbSink, NamesFoldersAndFilesAsWandbDoes) {
  const TempDir dir;
  run_once({.folder = dir.path().string()}, 0);
  const fs::path folder = fs::directory_iterator(dir.path())->path();
  std::smatch match;
  const std::string name = folder.filename().string();
  ASSERT_TRUE(std::regex_match(name, match, std::regex(R"(offline-run-\d{8}_\d{6}-([0-9a-z]{8}))"))) << name;
  EXPECT_EQ(runs_in(dir.path()), (std::multiset<std::string>{"run-" + match[1].str() + ".wandb"}));
  for (const int64_t step : {0, 5}) run_once({.folder = dir.path().string(), .id = "mine-1"}, step);
  EXPECT_EQ(runs_in(dir.path()).count("run-mine-1.wandb"), 2U);
}

TEST(WandbSink, RefusesOptionsThatCannotBe) {
  const TempDir dir;
  const std::string folder = dir.path().string(), file = dir.write("file", "x");
  struct Case {
    LogSinkOptions options;
    std::string config;
    std::vector<std::string> parts;
  };
  for (const Case& one : std::vector<Case>{{{.folder = ""}, "{}", {"folder"}},
                                           {{.folder = folder, .project = "a/b"}, "{}", {"project", "a/b"}},
                                           {{.folder = folder, .id = "../x"}, "{}", {"id", "../x"}},
                                           {{.folder = folder}, "[1]", {"config", "JSON object"}},
                                           {{.folder = file + "/logs"}, "{}", {"[WandbSink]", file}}}) {
    expect_error<ConfigError>([&] { wandb_sink(one.options, one.config); }, one.parts);
  }
}

}  // namespace
}  // namespace duet
