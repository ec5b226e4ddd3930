// Saves that do not end well: the process is killed, the disk is full, any system call fails.
#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/system_calls.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;
using testing::in_child, testing::kKill, testing::PlannedFault;

int temporaries_in(const std::string& root) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    count += name.find(".tmp.") != std::string::npos || name.find(".old.") != std::string::npos;
  }
  return count;
}

// A root with steps 1 to 3, of which a save deletes the oldest.
void fill(const std::string& root) {
  CheckpointStore store(root, {.max_keep = 3});
  for (int64_t step = 1; step <= 3; ++step) store.save(step, sample_state(step));
}

using Save = void (*)(CheckpointStore& store, int64_t step, const StateDict& state);

void save_at_once(CheckpointStore& store, int64_t step, const StateDict& state) { store.save(step, state); }

// The calls are those of the thread that writes.
void save_in_background(CheckpointStore& store, int64_t step, const StateDict& state) {
  store.save_in_background(step, state);
  store.finish_save();
}

// Saves `step` with the n-th call failing, for every n. Whatever happens, the newest checkpoint is the one before
// or the one of this save, and the next save works and cleans up.
void fail_at_every_call(int64_t step, int kind, Save save = save_at_once) {
  bool more = true;
  int failed = 0, n = 0;
  for (; more; ++n) {
    const TempDir folder;
    fill(folder / "c");
    const StateDict next = sample_state(100 + n);
    CheckpointStore store(folder / "c", {.max_keep = 3});
    bool saved = false;
    try {
      const PlannedFault fault(n, kind);
      try {
        save(store, step, next);
        saved = true;
      } catch (const CheckpointError& error) {
        EXPECT_NE(std::string(error.what()).find("training state in memory is intact"), std::string::npos);
        ++failed;
      }
      more = fault.happened();
    } catch (...) {
      FAIL() << "something else than a CheckpointError at call " << n;
    }
    const bool replaces = step <= 3;  // keeps the old one aside while the new one is not safe on the disk
    EXPECT_TRUE(saved || replaces || temporaries_in(folder / "c") == 0) << "call " << n;
    const StateDict found = CheckpointStore::load(*store.find_latest());
    const bool is_new = found.integer("epoch") == 100 + n;
    EXPECT_TRUE(is_new || !saved) << "call " << n;
    expect_same_state(is_new ? next : sample_state(3), found);
    store.save(9, sample_state(9));
    expect_same_state(sample_state(9), CheckpointStore::load(*store.find_latest()));
    EXPECT_EQ(temporaries_in(folder / "c"), 0) << "call " << n;
  }
  EXPECT_GT(n, 20);
  EXPECT_TRUE(failed > 10 || kind == EINTR) << failed;
}

TEST(CheckpointCrash, SurvivesAFullDiskAtEveryCallOfANewStep) { fail_at_every_call(4, ENOSPC); }
TEST(CheckpointCrash, SurvivesAnInterruptAtEveryCallOfANewStep) { fail_at_every_call(4, EINTR); }
TEST(CheckpointCrash, SurvivesAnErrorAtEveryCallOfAReplacedStep) { fail_at_every_call(3, EIO); }
TEST(CheckpointCrash, SurvivesAFullDiskAtEveryCallOfASaveInTheBackground) {
  fail_at_every_call(4, ENOSPC, save_in_background);
}

void die_at_every_call(int64_t step, Save save = save_at_once) {
  int n = 0;
  for (bool more = true; more; ++n) {
    const TempDir folder;
    fill(folder / "c");
    const StateDict next = sample_state(100 + n);
    const int status = in_child([&] {
      CheckpointStore store(folder / "c", {.max_keep = 3});
      const PlannedFault fault(n, kKill);
      save(store, step, next);
      return 0;
    });
    more = WIFSIGNALED(status);
    ASSERT_TRUE(more || status == 0);
    CheckpointStore store(folder / "c", {.max_keep = 3});
    const StateDict found = CheckpointStore::load(*store.find_latest());
    const bool is_new = found.integer("epoch") == 100 + n;
    EXPECT_TRUE(is_new || more) << "call " << n;
    expect_same_state(is_new ? next : sample_state(3), found);
    for (const std::string& path : store.list()) EXPECT_NO_THROW(CheckpointStore::verify(path)) << "call " << n;
    store.save(9, sample_state(9));
    EXPECT_EQ(temporaries_in(folder / "c"), 0) << "call " << n;
  }
  EXPECT_GT(n, 20);
}

TEST(CheckpointCrash, SurvivesDeathAtEveryCallOfANewStep) { die_at_every_call(4); }
TEST(CheckpointCrash, SurvivesDeathAtEveryCallOfAReplacedStep) { die_at_every_call(3); }
TEST(CheckpointCrash, SurvivesDeathAtEveryCallOfASaveInTheBackground) {
  if (std::string_view(DUET_SANITIZE) == "thread")
    GTEST_SKIP() << "ThreadSanitizer knows no threads that begin in a forked process";
  die_at_every_call(4, save_in_background);
}

// At whatever call it dies: the later ones are whole, all here or all beside, and the next call goes on.
TEST(CheckpointCrash, SetsAllLaterStepsAsideOrNoneAtWhateverCallItDies) {
  std::set<std::size_t> seen;
  bool more = true;
  for (int n = 0; more; ++n) {
    const TempDir folder;
    const std::string root = folder / "c";
    fill(root);
    CheckpointStore(root).set_best("step-3");
    const int status = in_child([&] {
      CheckpointStore store(root, {.max_keep = -1});
      const PlannedFault fault(n, kKill);
      store.set_aside_after(1);
      return 0;
    });
    more = WIFSIGNALED(status);
    ASSERT_TRUE(more || status == 0);
    CheckpointStore store(root, {.max_keep = -1});
    std::vector<std::string> left = store.list();
    seen.insert(left.size());
    EXPECT_EQ(*store.find_latest(), root + "/step-" + std::to_string(left.size())) << "call " << n;
    EXPECT_EQ(store.find_best().has_value(), left.size() == 3) << "call " << n;
    store.remove_leftovers();
    for (const std::string& path : CheckpointStore(root + ".1").list()) left.push_back(path);
    EXPECT_EQ(left.size(), 3U) << "call " << n;
    for (const std::string& path : left) EXPECT_NO_THROW(CheckpointStore::verify(path)) << "call " << n;
    store.set_aside_after(1);
    EXPECT_EQ(store.list(), std::vector<std::string>{root + "/step-1"}) << "call " << n;
    EXPECT_EQ(read_bytes(root + "/latest"), "step-1\n") << "call " << n;
  }
  EXPECT_EQ(seen, (std::set<std::size_t>{1, 3}));
}

// The save of a new best checkpoint deletes the one that was the best.
TEST(CheckpointCrash, LeavesABestCheckpointAfterDeathAtEveryCall) {
  int old = 0, n = 0;
  for (bool more = true; more; ++n) {
    const TempDir folder;
    const std::string root = folder / "c";
    fill(root);
    CheckpointStore(root).set_best("step-1");
    const int status = in_child([&] {
      CheckpointStore store(root, {.max_keep = 3});
      const PlannedFault fault(n, kKill);
      store.save(4, sample_state(4), {"step-4"}, {"best"});
      return 0;
    });
    more = WIFSIGNALED(status);
    ASSERT_TRUE(more || status == 0);
    const auto best = CheckpointStore(root).find_best();
    ASSERT_TRUE(best.has_value()) << "call " << n;
    EXPECT_NO_THROW(CheckpointStore::verify(*best)) << "call " << n;
    old += *best == root + "/step-1";
    EXPECT_TRUE(more || *best == root + "/step-4");
  }
  EXPECT_GT(old, 10);
  EXPECT_GT(n - old, 1);
}

TEST(CheckpointCrash, LetsOneProcessSaveAtATime) {
  const TempDir folder;
  const std::string root = folder / "c";
  CheckpointStore(root).save(1, sample_state(1));
  int ready[2], done[2];
  ASSERT_EQ(::pipe(ready) + ::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::open(root.c_str(), O_RDONLY | O_DIRECTORY);
    const bool locked = ::syscall(SYS_flock, fd, 2 /* LOCK_EX */) == 0;
    char byte = locked ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) != 1 || ::read(done[0], &byte, 1) < 0) ::_exit(1);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  expect_error<CheckpointError>([&] { CheckpointStore(root).save(2, sample_state(2)); },
                                {root, "another process or thread is saving there"});
  EXPECT_EQ(::write(done[1], &byte, 1), 1);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(CheckpointStore(root).save(2, sample_state(2)), root + "/step-2");
  for (const int fd : {ready[0], ready[1], done[0], done[1]}) ::close(fd);
}

}  // namespace
}  // namespace duet
