#include "hooks/logger_hook.h"
#include <cmath>
#include <filesystem>
#include <fstream>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using testing::Json;
using testing::kind_of;
using testing::lasting;
using testing::lines_of;
using testing::MemorySink;
using testing::stderr_of;

class Logger : public ::testing::Test {
 protected:
  TempDir folder;
  FakeRun run;
  std::string log_file;

  void SetUp() override {
    // The log looks once whether stderr is a terminal: let it be before a test makes it one.
    log(LogLevel::kDebug, "");
    run.context.work_dir = folder / "run";
    run.context.progress.max_steps = 25;
    run.context.progress.max_epochs = 2;
    run.context.progress.steps_per_epoch = 20;
    log_file = folder / "run/log.jsonl";
  }
};

TEST_F(Logger, WritesEveryFieldToLineAndFile) {
  LoggerHook hook({.interval = 2});
  run.context.log.gauge("eta", [] { return 3723.0; });
  run.context.log.gauge("memory", [] { return 120.4; });
  run.context.log.gauge("silent", [] { return std::nan(""); });
  const std::string text = stderr_of([&] {
    hook.before_train(run.context);
    for (const double seconds : {0.002, 0.006}) {
      run.context.step.seconds = seconds;
      run.context.step.data_seconds = seconds / 2;
      run.output.log = {{"acc", at::scalar_tensor(0.75)}, {"time", at::scalar_tensor(3.0)}};
      run.output.grad_norm = at::scalar_tensor(1.25);
      run.context.log("decay", 0.5);
      run.step(hook, 2 * seconds * 100);
    }
    hook.after_train(run.context);
    hook.after_run(run.context);
  });
  for (const char* part :
       {"step 2/25  epoch 1/2  lr 1.00e-01  loss 0.8  acc 0.75  log.time 3  grad_norm 1.25  decay 0.5  "
        "time 4.0 ms (data 2.0)  memory 120 MB  eta 1:02:03\n",
        "model: 1 parameters (0.0 MiB), 1 trainable", "training ends at step 2"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
  const std::vector<Json> lines = lines_of(log_file);
  ASSERT_EQ(lines.size(), 4U);
  const std::string run_id = lines[0].at("run_id");
  EXPECT_EQ(run_id.size(), 8U);
  for (const Json& line : lines) {
    EXPECT_EQ(line.at("run_id"), run_id);
    EXPECT_EQ(line.at("wall_time").get<std::string>().size(), std::string("2026-01-01T00:00:00.000Z").size());
  }
  EXPECT_EQ(lasting(lines[0]), Json({{"kind", "start"}, {"mode", "eager"}, {"step", 0}, {"steps", 25}}));
  EXPECT_EQ(lines[1].at("kind"), "text");
  Json train = lines[2];
  EXPECT_NEAR(train.at("time").get<double>(), 0.004, 1e-12);
  EXPECT_NEAR(train.at("data_time").get<double>(), 0.002, 1e-12);
  EXPECT_NEAR(train.at("loss").get<double>(), 0.8, 1e-6);
  EXPECT_EQ(train.at("memory"), 120.4);
  EXPECT_EQ(train.at("eta"), 3723.0);
  train.erase("loss");
  EXPECT_EQ(lasting(train), Json({{"kind", "train"},
                                  {"mode", "eager"},
                                  {"lr", 0.1},
                                  {"acc", 0.75},
                                  {"log.time", 3.0},
                                  {"grad_norm", 1.25},
                                  {"decay", 0.5},
                                  {"epoch", 1},
                                  {"iter", 2},
                                  {"step", 2}}));
  EXPECT_EQ(lines[3].at("reason"), "done");
}

TEST_F(Logger, WritesNumbersAndBytesThatJsonDoesNotHave) {
  LoggerHook hook({.interval = 1});
  const std::string text = stderr_of([&] {
    hook.before_train(run.context);
    run.output.log = {{"a", at::scalar_tensor(INFINITY)}, {"b", at::scalar_tensor(-INFINITY)}};
    run.step(hook, -std::nan(""));
    run.context.control.error = "bad byte \xff \"quoted\"\n";
    hook.on_exception(run.context);
    hook.after_train(run.context);
  });
  EXPECT_NE(text.find("loss nan  a inf  b -inf"), std::string::npos) << text;
  const std::vector<Json> lines = lines_of(log_file);
  const Json line = kind_of(lines, "train").at(0);
  EXPECT_EQ(line.at("loss"), "nan");
  EXPECT_EQ(line.at("a"), "inf");
  EXPECT_EQ(line.at("b"), "-inf");
  EXPECT_EQ(lines.back().at("kind"), "error");
  EXPECT_NE(lines.back().at("error").get<std::string>().find("\"quoted\"\n"), std::string::npos);
}

TEST_F(Logger, WritesResultsOfEvaluations) {
  LoggerHook hook;
  hook.before_train(run.context);
  run.context.progress.step = 20;
  run.context.progress.epoch = 1;  // the turn of an epoch: it is epoch 1 that was validated
  const std::string text = stderr_of([&] {
    run.validation(hook, {{"accuracy", 0.875}, {"step", 7}});
    hook.flush();
  });
  EXPECT_NE(text.find("val  step 20/25  accuracy 0.875"), std::string::npos) << text;
  EXPECT_EQ(
      lasting(lines_of(log_file).back()),
      Json({{"kind", "val"}, {"mode", "eager"}, {"epoch", 1}, {"step", 20}, {"accuracy", 0.875}, {"log.step", 7.0}}));
  hook.after_test_epoch(run.context);
  hook.flush();
  EXPECT_EQ(lines_of(log_file).back().at("kind"), "test");
}

TEST_F(Logger, CountsFromTheBeginningOfEachEpochIfAsked) {
  const auto steps = [&](const LoggerHookOptions& options, int64_t epoch_length) {
    const auto records = std::make_shared<std::vector<LogRecord>>();
    std::vector<std::unique_ptr<LogSink>> sinks;
    sinks.push_back(std::make_unique<MemorySink>(records));
    LoggerHook hook(options, std::move(sinks));
    run.context.progress.step = run.context.progress.step_in_epoch = run.context.progress.epoch = 0;
    run.context.progress.max_steps = 100;
    run.context.progress.max_epochs = 0;
    run.context.progress.steps_per_epoch = epoch_length;
    for (int i = 0; i < 2 * epoch_length; ++i) {
      if (i == epoch_length) {
        ++run.context.progress.epoch;
        run.context.progress.step_in_epoch = 0;
      }
      run.step(hook);
    }
    hook.flush();
    std::vector<int64_t> steps;
    for (const LogRecord& record : *records) steps.push_back(record.step);
    return steps;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(steps({.interval = 3, .sinks = {}}, 7), (Steps{3, 6, 9, 12}));
  EXPECT_EQ(steps({.interval = 3, .by_epoch = true, .sinks = {}}, 7), (Steps{3, 6, 10, 13}));
  EXPECT_EQ(steps({.interval = 3, .by_epoch = true, .ignore_last = false, .sinks = {}}, 7),
            (Steps{3, 6, 7, 10, 13, 14}));
  EXPECT_EQ(steps({.interval = 9, .by_epoch = true, .sinks = {}}, 7), (Steps{7, 14}));  // else it would say nothing
}

TEST_F(Logger, GivesTextsAndPicturesToItsSinks) {
  const auto records = std::make_shared<std::vector<LogRecord>>();
  {
    std::vector<std::unique_ptr<LogSink>> sinks;
    sinks.push_back(std::make_unique<MemorySink>(records));
    LoggerHook hook({}, std::move(sinks));
    hook.before_run(run.context);
    EXPECT_TRUE(run.context.log.wants_images());
    const at::Tensor pixels = at::full({2, 3, 3}, 7, at::kByte);
    run.context.progress.step = 4;
    run.context.log.image("val/a", pixels);
    pixels.zero_();  // the painter uses it again
    run.context.log.text("note", "hello");
  }
  run.context.log.text("note", "nobody listens any more");
  ASSERT_EQ(records->size(), 3U);
  EXPECT_EQ(records->at(1).kind, "image");
  EXPECT_EQ(records->at(1).step, 4);
  EXPECT_EQ(records->at(1).images.at(0).name, "val/a");
  EXPECT_EQ(records->at(1).images.at(0).pixels.sum().item<int64_t>(), 2 * 3 * 3 * 7);
  EXPECT_EQ(std::get<std::string>(records->at(2).values.at(0).second), "hello");
  const std::vector<Json> lines = lines_of(log_file);
  ASSERT_EQ(lines.size(), 2U);  // pictures are not for this file
  EXPECT_EQ(lines[1].at("note"), "hello");

  LoggerHook plain;
  plain.before_run(run.context);
  EXPECT_FALSE(run.context.log.wants_images());  // so nobody paints any
}

TEST_F(Logger, AppendsAfterAResumeAndAfterHalfALine) {
  std::filesystem::create_directories(run.context.work_dir);
  std::ofstream(log_file) << "{\"kind\":\"train\"}\n{\"kind\":\"tra";
  LoggerHook hook;
  hook.before_train(run.context);
  hook.flush();
  std::ifstream file(log_file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_GE(lines.size(), 3U);
  EXPECT_EQ(lines[1], "{\"kind\":\"tra");
  EXPECT_EQ(Json::parse(lines[2]).at("kind"), "start");
}

TEST_F(Logger, MarksLinesThatAResumeUndoes) {
  std::filesystem::create_directories(run.context.work_dir);
  std::ofstream(log_file) << R"({"kind":"train","step":100}
{"kind":"train","step":150}
{"kind":"val","step":150,"best":"\"train\""}
)";
  for (const int64_t step : {120, 120, 130}) {  // the last one undoes nothing
    LoggerHook hook({.interval = 1, .model_summary = false});
    run.context.progress.step = step;
    hook.before_train(run.context);
    if (step == 120) run.step(hook);
    hook.flush();
  }
  const std::vector<Json> lines = lines_of(log_file), marks = kind_of(lines, "void");
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks[0].at("step"), 120);
  EXPECT_EQ(marks[0].at("last_step"), 150);
  EXPECT_EQ(marks[1].at("last_step"), 121);
  EXPECT_EQ(lines[3].at("kind"), "void");
  EXPECT_EQ(lines[4].at("kind"), "start");
}

TEST_F(Logger, MarksLinesThatGoingBackUndoes) {
  LoggerHook hook({.interval = 2});
  hook.before_train(run.context);
  for (int i = 0; i < 6; ++i) run.step(hook);
  run.context.progress.step = 3;
  hook.after_load_checkpoint(run.context);
  for (int i = 0; i < 2; ++i) run.step(hook);
  hook.after_load_checkpoint(run.context);  // to where it is
  hook.after_train(run.context);
  const std::vector<Json> marks = kind_of(lines_of(log_file), "void");
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0].at("step"), 3);
  EXPECT_EQ(marks[0].at("last_step"), 6);
}

// What a run of three steps shows on a terminal; nothing where there is none.
std::string on_terminal(const LoggerHookOptions& options) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return {};
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
  const int saved = dup(STDERR_FILENO);
  dup2(slave, STDERR_FILENO);
  FakeRun run;
  run.context.progress.max_steps = 4;
  LoggerHook hook(options);
  run.context.log.gauge("eta", [] { return 61.0; });
  hook.before_train(run.context);
  for (int i = 0; i < 3; ++i) run.step(hook);
  hook.flush();
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
  const std::string drawn = on_terminal({.interval = 100});
  if (drawn.empty()) GTEST_SKIP() << "no terminal here";
  EXPECT_NE(drawn.find("[=====               ] 1/4  epoch 1  eta 0:01:01"), std::string::npos) << drawn;
  EXPECT_EQ(on_terminal({.interval = 100, .progress = false}).find("1/4"), std::string::npos);
}

}  // namespace
}  // namespace duet
