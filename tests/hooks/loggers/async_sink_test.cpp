#include "hooks/loggers/async_sink.h"
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "hooks/loggers/sinks.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using testing::lines_of;
using testing::MemorySink;
using testing::stderr_of;
using Records = std::vector<LogRecord>;

std::vector<std::unique_ptr<LogSink>> one(std::unique_ptr<LogSink> sink) {
  std::vector<std::unique_ptr<LogSink>> sinks;
  sinks.push_back(std::move(sink));
  return sinks;
}

LogRecord record(int64_t step, const std::string& kind = "train") { return {.kind = kind, .step = step}; }

// Writes only while the gate is open.
class GatedSink : public LogSink {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    std::vector<int64_t> steps;
    std::thread::id thread;
  };
  explicit GatedSink(Gate& gate) : gate_(gate) {}
  void write(const LogRecord& record) override {
    std::unique_lock lock(gate_.mutex);
    gate_.changed.wait(lock, [&] { return gate_.open; });
    gate_.steps.push_back(record.step);
    gate_.thread = std::this_thread::get_id();
    gate_.changed.notify_all();
  }

 private:
  Gate& gate_;
};

// Waits before each line, so that exit() comes first.
class SlowSink : public LogSink {
 public:
  explicit SlowSink(std::unique_ptr<LogSink> sink) : sink_(std::move(sink)) {}
  void write(const LogRecord& record) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    sink_->write(record);
  }

 private:
  std::unique_ptr<LogSink> sink_;
};

int lines_with(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line);) count += line.find(part) != std::string::npos ? 1 : 0;
  return count;
}

TEST(AsyncSink, NeverWaitsForItsSinksAndDropsNothing) {
  GatedSink::Gate gate;
  AsyncSink sink(one(std::make_unique<GatedSink>(gate)));
  for (int64_t step = 0; step < 10000; ++step) sink.put(record(step));  // would hang if it waited
  {
    const std::lock_guard lock(gate.mutex);
    EXPECT_TRUE(gate.steps.empty());
    gate.open = true;
  }
  gate.changed.notify_all();
  sink.flush();
  ASSERT_EQ(gate.steps.size(), 10000U);
  for (int64_t step = 0; step < 10000; ++step) ASSERT_EQ(gate.steps[static_cast<std::size_t>(step)], step);
  EXPECT_NE(gate.thread, std::this_thread::get_id());
}

TEST(AsyncSink, LosesWhatNoMemoryIsLeftForAndSaysSo) {
  GatedSink::Gate gate;
  const std::string text = stderr_of([&] {
    AsyncSink sink(one(std::make_unique<GatedSink>(gate)));
    const std::string line(1 << 20, 'x');
    for (int64_t step = 0; step < 100; ++step) sink.put({.kind = "train", .step = step, .line = line});
    {
      const std::lock_guard lock(gate.mutex);
      gate.open = true;
    }
    gate.changed.notify_all();
    sink.flush();
    sink.put(record(100));
  });
  EXPECT_NEAR(static_cast<double>(gate.steps.size()), 64, 3);  // MiB
  EXPECT_EQ(gate.steps.back(), 100);
  EXPECT_NE(text.find("lines came faster than they could be written"), std::string::npos) << text;
  EXPECT_NE(text.find("to 99)"), std::string::npos) << text;
}

// A disk that hangs. Each line begun before the gate opens is written in the end by the thread that was left behind.
TEST(AsyncSink, WaitsForNothingThatHangs) {
  static GatedSink::Gate gate;
  const std::string text = stderr_of([&] {
    AsyncSink sink(one(std::make_unique<GatedSink>(gate)), std::chrono::milliseconds(20));
    sink.put(record(1));
    sink.put(record(2));
    sink.flush();
    sink.flush();  // said once
    sink.close();
    sink.put(record(3));
    sink.flush();
  });
  EXPECT_EQ(lines_with(text, "takes none at the moment"), 1) << text;
  EXPECT_EQ(lines_with(text, "is left behind; the last lines may be lost"), 1) << text;
  std::unique_lock lock(gate.mutex);
  EXPECT_TRUE(gate.steps.empty());
  gate.open = true;
  gate.changed.notify_all();
  gate.changed.wait(lock, [] { return gate.steps.size() == 2; });
}

// As long as something is written, it is waited for.
TEST(AsyncSink, WaitsForWhatIsSlow) {
  const auto records = std::make_shared<Records>();
  AsyncSink sink(one(std::make_unique<SlowSink>(std::make_unique<MemorySink>(records))),
                 std::chrono::milliseconds(1500));
  for (int64_t step = 0; step < 100; ++step) sink.put(record(step));
  sink.flush();
  EXPECT_EQ(records->size(), 100U);
}

// What the test and its sink share. Look at it after a flush().
struct Disk {
  bool is_full = false;
  std::set<int64_t> refused;  // steps that it never takes
  std::vector<int64_t> steps;
};

class DiskSink : public LogSink {
 public:
  explicit DiskSink(Disk& disk) : disk_(disk) {}
  void write(const LogRecord& record) override {
    if (disk_.is_full) throw std::runtime_error("no space left");
    if (disk_.refused.contains(record.step)) throw std::runtime_error("not that one");
    disk_.steps.push_back(record.step);
  }

 private:
  Disk& disk_;
};

// Each record on its own.
void write(AsyncSink& sink, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    sink.put(record(step));
    sink.flush();
  }
}

// What a disk takes that was full is in full_disk_test.cpp.
TEST(AsyncSink, LosesWhatCanNeverBeWrittenAndNoOther) {
  Disk disk{.refused = {3, 4, 5}};
  const auto others = std::make_shared<Records>();
  auto sinks = one(std::make_unique<DiskSink>(disk));
  sinks.push_back(std::make_unique<MemorySink>(others));
  const std::string text = stderr_of([&] {
    AsyncSink sink(std::move(sinks));
    write(sink, 1, 20);
  });
  EXPECT_EQ(disk.steps.size(), 17U);
  EXPECT_EQ(others->size(), 20U);
  EXPECT_NE(text.find("lost records: 3 (steps 3 to 5): not that one"), std::string::npos) << text;
}

TEST(AsyncSink, SaysAtTheEndWhatIsLost) {
  Disk disk;
  const std::string text = stderr_of([&] {
    AsyncSink sink(one(std::make_unique<DiskSink>(disk)));
    write(sink, 1, 2);
    disk.is_full = true;
    write(sink, 3, 9);
  });
  EXPECT_EQ(disk.steps, (std::vector<int64_t>{1, 2}));
  EXPECT_NE(text.find("could not take: 7 (steps 3 to 9): no space left"), std::string::npos) << text;
}

// Takes neither, or progress too.
class PickySink : public MemorySink {
 public:
  PickySink(std::shared_ptr<Records> records, bool images, bool progress)
      : MemorySink(std::move(records)), images_(images), progress_(progress) {}
  bool takes_images() const override { return images_; }
  bool shows_progress() const override { return progress_; }

 private:
  bool images_, progress_;
};

TEST(AsyncSink, GivesPicturesAndProgressToThoseWhoTakeThem) {
  std::vector<std::shared_ptr<Records>> seen;
  std::vector<std::unique_ptr<LogSink>> sinks;
  for (const auto& [images, progress] : {std::pair{false, false}, {true, false}, {true, true}}) {
    seen.push_back(std::make_shared<Records>());
    sinks.push_back(std::make_unique<PickySink>(seen.back(), images, progress));
  }
  EXPECT_FALSE(AsyncSink(one(std::make_unique<PickySink>(seen[0], false, false))).takes_images());
  {
    AsyncSink sink(std::move(sinks));
    EXPECT_TRUE(sink.takes_images());
    EXPECT_TRUE(sink.shows_progress());
    sink.put(record(1, "progress"));
    sink.put({.kind = "image", .step = 2, .images = {{"a", at::Tensor()}}});
    sink.put(record(3));
  }
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i]->size(), i + 1);
}

TEST(AsyncSink, LinesOfTheLogStandInTheOrderOfWhatHappens) {
  const std::string text = stderr_of([] {
    AsyncSink sink(one(terminal_sink()));
    for (int64_t step = 0; step < 200; ++step) {
      sink.put({.kind = "train", .step = step, .line = "from the sink"});
      log_info("from beside it");
    }
  });
  std::istringstream lines(text);
  std::string line;
  int64_t count = 0;
  for (; std::getline(lines, line); ++count) {
    ASSERT_NE(line.find(count % 2 == 0 ? "from the sink" : "from beside it"), std::string::npos) << "line " << count;
  }
  EXPECT_EQ(count, 400);
}

// So named, it runs before a profiler leaves a thread whose absence ends a forked process.
TEST(AsyncSinkDeathTest, WritesAllBeforeExitEndsTheProgram) {
  const TempDir folder;
  const std::string file = folder / "log.jsonl";
  EXPECT_EXIT(
      {
        auto* sink = new AsyncSink(one(std::make_unique<SlowSink>(jsonl_sink(file))));  // nobody destroys it
        for (int64_t step = 0; step < 20; ++step) sink->put(record(step));
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
  EXPECT_EQ(lines_of(file).size(), 20U);
}

TEST(JsonlSink, WaitsForNobodyToReadAPipe) {
  const TempDir folder;
  const std::string file = folder / "log.jsonl";
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  expect_error<ConfigError>([&] { jsonl_sink(file); }, {file, "cannot be written"});
  EXPECT_NO_THROW(jsonl_sink("/dev/null"));
}

TEST(AsyncSink, LeavesItsSinksToTheParentInAProcessThatWasForked) {
  const TempDir folder;
  const std::string file = folder / "log.jsonl";
  auto sink = std::make_unique<AsyncSink>(one(jsonl_sink(file)));
  sink->put(record(1));
  sink->flush();
  for (const bool puts : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      if (puts) sink->put(record(2));
      sink->flush();
      sink.reset();
      std::_Exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 3);
  }
  sink->put(record(3));
  sink.reset();
  std::vector<int64_t> steps;
  for (const auto& line : lines_of(file)) steps.push_back(line.at("step"));
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 3}));
}

}  // namespace
}  // namespace duet
