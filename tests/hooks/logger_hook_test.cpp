#include <duet/hooks/logger_hook.h>

#include <duet/core/error.h>
#include <duet/core/log.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "../support/expect_error.h"
#include "../support/fakes.h"
#include "../support/temp_dir.h"

namespace duet {
namespace {

using Json = nlohmann::json;

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<Json> kind_of(const std::vector<Json>& lines, const std::string& kind) {
  std::vector<Json> found;
  for (const Json& line : lines) {
    if (line.at("kind") == kind) found.push_back(line);
  }
  return found;
}

// Everything that `body` writes to stderr.
std::string stderr_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

class Logger : public ::testing::Test {
 protected:
  TempDir folder;
  FakeRun run;
  std::string log_file;

  void SetUp() override {
    // The log looks once whether stderr is a terminal: let it be before a test makes it one.
    log(LogLevel::kDebug, "");
    run.context.work_dir = folder / "run";
    run.context.max_updates = 25;
    run.context.max_epochs = 2;
    run.context.updates_per_epoch = 20;
    log_file = folder / "run/log.jsonl";
  }
};

TEST_F(Logger, ReadsTheDeviceOnlyAtItsIntervalAndAtTheEnd) {
  LoggerHook hook({.interval = 10});
  hook.before_train(run.context);
  const at::Tensor unreadable = at::empty({}, at::device(at::kMeta).dtype(at::kFloat));
  EXPECT_ANY_THROW(unreadable.item());
  for (int64_t update = 1; update <= 25; ++update) {
    const bool due = update == 10 || update == 20 || update == 25;
    run.update(hook, due ? at::scalar_tensor(0.5 * static_cast<double>(update)) : unreadable);
  }
  hook.after_train(run.context);

  const std::vector<Json> train = kind_of(lines_of(log_file), "train");
  ASSERT_EQ(train.size(), 3U);
  EXPECT_EQ(train[0].at("loss"), 5.0);
  EXPECT_EQ(train[1].at("loss"), 10.0);
  EXPECT_EQ(train[2].at("loss"), 12.5);
  EXPECT_EQ(train[2].at("step"), 25);
}

TEST_F(Logger, LogsTheLastUpdateOfAStoppedRun) {
  LoggerHook hook({.interval = 10});
  hook.before_train(run.context);
  run.update(hook);
  run.context.request_stop("signal 15");
  run.update(hook);
  hook.after_train(run.context);
  const std::vector<Json> lines = lines_of(log_file);
  ASSERT_EQ(kind_of(lines, "train").size(), 1U);
  EXPECT_EQ(kind_of(lines, "train")[0].at("step"), 2);
  EXPECT_EQ(kind_of(lines, "stop").at(0).at("reason"), "signal 15");
}

TEST_F(Logger, WritesEveryFieldToLineAndFile) {
  LoggerHook hook({.interval = 2});
  const std::string text = stderr_of([&] {
    hook.before_train(run.context);
    for (const double seconds : {0.002, 0.006}) {
      run.context.update_seconds = seconds;
      run.context.data_seconds = seconds / 2;
      run.output.log = {{"acc", at::scalar_tensor(0.75)}, {"time", at::scalar_tensor(3.0)}};
      run.output.grad_norm = at::scalar_tensor(1.25);
      run.update(hook, 0.4321);
    }
    hook.after_train(run.context);
  });
  for (const char* part : {"update 2/25  epoch 1/2  lr 1.00e-01  loss 0.4321  acc 0.75  time 3  grad_norm 1.25  "
                           "time 4.0 ms (data 2.0)  eta 0:00:0",
                           "training ends at update 2"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
  const std::vector<Json> lines = lines_of(log_file);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], Json({{"kind", "start"}, {"mode", "eager"}, {"step", 0}, {"updates", 25}}));
  Json train = lines[1];
  EXPECT_NEAR(train.at("time").get<double>(), 0.004, 1e-12);
  EXPECT_NEAR(train.at("data_time").get<double>(), 0.002, 1e-12);
  EXPECT_NEAR(train.at("loss").get<double>(), 0.4321, 1e-6);
  for (const char* key : {"time", "data_time", "loss"}) train.erase(key);
  EXPECT_EQ(train, Json({{"kind", "train"},
                         {"mode", "eager"},
                         {"lr", 0.1},
                         {"acc", 0.75},
                         {"log.time", 3.0},
                         {"grad_norm", 1.25},
                         {"epoch", 1},
                         {"iter", 2},
                         {"step", 2}}));
  EXPECT_EQ(lines[2].at("reason"), "done");
}

TEST_F(Logger, MeasuresTimeItselfWhenNobodyElseDoes) {
  LoggerHook hook({.interval = 2});
  hook.before_train(run.context);
  for (int i = 0; i < 2; ++i) run.update(hook);
  EXPECT_GT(lines_of(log_file).back().at("time").get<double>(), 0);
}

TEST_F(Logger, WritesNumbersThatJsonDoesNotHave) {
  LoggerHook hook({.interval = 1});
  const std::string text = stderr_of([&] {
    hook.before_train(run.context);
    run.output.log = {{"a", at::scalar_tensor(INFINITY)}, {"b", at::scalar_tensor(-INFINITY)}};
    run.update(hook, -std::nan(""));
  });
  EXPECT_NE(text.find("loss nan  a inf  b -inf"), std::string::npos) << text;
  const Json line = lines_of(log_file).back();
  EXPECT_EQ(line.at("loss"), "nan");
  EXPECT_EQ(line.at("a"), "inf");
  EXPECT_EQ(line.at("b"), "-inf");
}

TEST_F(Logger, WritesResultsOfEvaluations) {
  LoggerHook hook;
  hook.before_train(run.context);
  run.context.update = 20;
  run.context.epoch = 1;  // the turn of an epoch: it is epoch 1 that was validated
  const std::string text = stderr_of([&] { run.validation(hook, {{"accuracy", 0.875}, {"step", 7}}); });
  EXPECT_NE(text.find("val  update 20/25  accuracy 0.875"), std::string::npos) << text;
  EXPECT_EQ(
      lines_of(log_file).back(),
      Json({{"kind", "val"}, {"mode", "eager"}, {"epoch", 1}, {"step", 20}, {"accuracy", 0.875}, {"log.step", 7.0}}));
  hook.after_test_epoch(run.context);
  EXPECT_EQ(lines_of(log_file).back().at("kind"), "test");
}

TEST_F(Logger, WritesAnErrorWhateverItsBytes) {
  LoggerHook hook;
  hook.before_train(run.context);
  run.context.error = "bad byte \xff \"quoted\"\n";
  hook.on_exception(run.context);
  hook.after_train(run.context);
  const std::vector<Json> lines = lines_of(log_file);
  EXPECT_EQ(lines.back().at("kind"), "error");
  EXPECT_NE(lines.back().at("error").get<std::string>().find("\"quoted\"\n"), std::string::npos);
}

TEST_F(Logger, AppendsAfterAResumeAndAfterHalfALine) {
  std::filesystem::create_directories(run.context.work_dir);
  std::ofstream(log_file) << "{\"kind\":\"train\"}\n{\"kind\":\"tra";
  LoggerHook hook;
  hook.before_train(run.context);
  std::ifstream file(log_file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1], "{\"kind\":\"tra");
  EXPECT_EQ(Json::parse(lines[2]).at("kind"), "start");
}

TEST_F(Logger, NamesWorkDirWhenItsFileCannotBeWritten) {
  run.context.work_dir = folder.write("a_file", "x") + "/run";
  LoggerHook hook;
  expect_error<ConfigError>([&] { hook.before_train(run.context); }, {"log.jsonl", "work_dir", run.context.work_dir});
}

TEST_F(Logger, WritesNoFileWithoutWorkDirAndTheOneThatIsNamed) {
  run.context.work_dir.clear();
  LoggerHook nowhere({.interval = 1}), named({.interval = 1, .file = folder / "logs/own.jsonl"});
  for (LoggerHook* hook : {&nowhere, &named}) {
    hook->before_train(run.context);
    run.update(*hook);
  }
  EXPECT_EQ(lines_of(folder / "logs/own.jsonl").size(), 2U);
  EXPECT_FALSE(std::filesystem::exists(log_file));
  expect_error<ConfigError>([] { LoggerHook({.interval = 0}); }, {"interval 0", "at least 1"});
}

TEST_F(Logger, WorksInALoopOfTheUsersOwn) {
  LoggerHook hook({.interval = 2});
  const std::string text = stderr_of([&] {
    run.update(hook);
    run.update(hook, 0.5);
  });
  EXPECT_NE(text.find("update 2/25"), std::string::npos) << text;
}

TEST_F(Logger, DrawsNoProgressIntoAPipe) {
  LoggerHook hook({.interval = 10});
  const std::string text = stderr_of([&] {
    hook.before_train(run.context);
    for (int i = 0; i < 25; ++i) run.update(hook);
    hook.after_train(run.context);
  });
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos) << text;
}

// What a run of three updates shows on a terminal.
std::string on_terminal(const TrainContext& from, LoggerHookOptions options) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return "no terminal here";
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
  const int saved = dup(STDERR_FILENO);
  dup2(slave, STDERR_FILENO);
  FakeRun run;
  run.context.max_updates = from.max_updates;
  LoggerHook hook(options);
  hook.before_train(run.context);
  for (int i = 0; i < 3; ++i) run.update(hook);
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(slave);  // nobody writes any more: read() fails after the last byte
  std::string text;
  char buffer[512];
  for (ssize_t count; (count = read(master, buffer, sizeof(buffer))) > 0;) text.append(buffer, count);
  close(master);
  return text;
}

TEST_F(Logger, DrawsProgressOnATerminal) {
  run.context.max_updates = 4;
  const std::string drawn = on_terminal(run.context, {.interval = 100});
  if (drawn == "no terminal here") GTEST_SKIP();
  EXPECT_NE(drawn.find("[=====               ] 1/4  eta 0:00:0"), std::string::npos) << drawn;
  EXPECT_EQ(drawn.find("2/4"), std::string::npos) << "drawn too often: " << drawn;
  EXPECT_EQ(on_terminal(run.context, {.interval = 100, .progress = false}).find("1/4"), std::string::npos);
}

}  // namespace
}  // namespace duet
