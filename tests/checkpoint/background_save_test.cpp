// Saves that a thread writes while training goes on.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/system_calls.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/memory_limit.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using namespace std::chrono_literals;
using testing::HeldCalls, testing::kFlipBit, testing::NoLocks, testing::PlannedFault, testing::stderr_of;

TEST(BackgroundSave, KeepsTheStateAsItWasAtTheCall) {
  const TempDir folder;
  const StateDict state = odd_state(), before = copy_of(state);
  CheckpointStore store(folder / "c");
  HeldCalls held;
  const std::string path = store.save_in_background(4, state);
  EXPECT_TRUE(held.wait_for(1));
  for (const auto& [name, tensor] : state.tensors()) {
    if (name != "model.expanded") tensor.detach().zero_();
  }
  held.let_go();
  store.finish_save();
  EXPECT_EQ(path, folder / "c/step-4");
  expect_same_state(before, CheckpointStore::load(path));
}

TEST(BackgroundSave, TakesANewShapeIntoTheMemoryOfTheLastOne) {
  const TempDir folder;
  CheckpointStore store(folder / "c", {.max_keep = -1});
  std::vector<StateDict> states = {sample_state(1), sample_state(2), sample_state(3), odd_state(), sample_state(5)};
  states[2].set("model.fc.weight", at::ones({2, 2}, at::kHalf));
  for (std::size_t i = 0; i < states.size(); ++i) store.save_in_background(static_cast<int64_t>(i), states[i]);
  for (std::size_t i = 0; i < states.size(); ++i) {
    expect_same_state(states[i], CheckpointStore::load(folder / ("c/step-" + std::to_string(i))));
  }
}

// `call` comes back only when the save that is being written is through.
void expect_waits_for_save(CheckpointStore& store, const std::function<void()>& call) {
  HeldCalls held;
  store.save_in_background(1, sample_state(1));
  ASSERT_TRUE(held.wait_for(1));
  std::atomic<bool> let_go = false;
  auto waiting = std::async(std::launch::async, [&] {
    call();
    return let_go.load();
  });
  EXPECT_FALSE(held.wait_for(2, 200ms));  // it would be at a call of its own, or through
  EXPECT_EQ(waiting.wait_for(0s), std::future_status::timeout);
  let_go = true;
  held.let_go();
  EXPECT_TRUE(waiting.get());
}

TEST(BackgroundSave, IsWaitedForByTheNextOne) {
  const TempDir folder;
  CheckpointStore store(folder / "c"), other(folder / "c");
  expect_waits_for_save(store, [&] { store.save_in_background(2, sample_state(2)); });
  store.finish_save();
  EXPECT_EQ(read_bytes(folder / "c/latest"), "step-2\n");
  expect_waits_for_save(store, [&] { other.save(3, sample_state(3)); });
  EXPECT_EQ(read_bytes(folder / "c/latest"), "step-3\n");
}

TEST(BackgroundSave, IsWaitedForByWhoeverReads) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  const std::string path = folder / "c/step-1";
  expect_waits_for_save(store, [&] { EXPECT_EQ(CheckpointStore(folder / "c").list().front(), path); });
  expect_waits_for_save(store, [&] { EXPECT_EQ(CheckpointStore(folder / "c").find_latest(), path); });
  expect_waits_for_save(store, [&] { expect_same_state(sample_state(1), CheckpointStore::load(folder / "c")); });
  expect_waits_for_save(store, [&] { EXPECT_EQ(CheckpointStore::read_manifest(path).step, 1); });
}

TEST(BackgroundSave, IsWaitedForByExit) {
  const TempDir folder;
  EXPECT_EQ(testing::in_child([&]() -> int {
              auto* const store = new CheckpointStore(folder / "c");  // nobody destroys it
              StateDict state = sample_state(1);
              state.set("model.large", at::zeros({int64_t{64} << 20}, at::kByte));
              store->save_in_background(1, state);
              std::exit(0);
            }),
            0);
  EXPECT_EQ(CheckpointStore::load(folder / "c").tensor("model.large").numel(), int64_t{64} << 20);
}

// A child has none of the threads of the process that it was forked from.
TEST(BackgroundSave, IsNotWaitedForByAChild) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  CheckpointStore(folder / "d").save(5, sample_state(5));
  const std::string path = folder / "d/step-5";
  expect_waits_for_save(store, [&] { EXPECT_EQ(CheckpointStore(folder / "c").list().size(), 1U); });
  store.save_in_background(2, sample_state(2));
  EXPECT_EQ(testing::in_child([&] { return CheckpointStore(folder / "d").list().front() == path ? 0 : 1; }), 0);
  EXPECT_EQ(testing::in_child([&] { return CheckpointStore(folder / "c").list().empty() ? 1 : 0; }), 0);
  store.finish_save();
}

// Its memory ends before a copy fits.
TEST(BackgroundSave, SavesAtOnceWhereThereIsNoMemoryForACopy) {
  if (!memory_can_be_limited()) GTEST_SKIP();
  const TempDir folder;
  StateDict state = sample_state(1);
  state.set("model.large", at::zeros({int64_t{192} << 20}, at::kByte));
  EXPECT_EQ(testing::in_child([&] {
              std::ifstream status("/proc/self/statm");
              rlim_t pages = 0;
              status >> pages;
              const rlim_t most = pages * 4096 + (rlim_t{96} << 20);
              const rlimit limit{most, most};
              if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
              CheckpointStore store(folder / "c");
              store.save_in_background(1, state);
              return std::filesystem::exists(folder / "c/step-1") ? 0 : 3;  // with no wait
            }),
            0);
  expect_same_state(state, CheckpointStore::load(folder / "c"));
}

TEST(ReadBack, FindsWhatTheDiskChangedBeforeTheSaveCounts) {
  const TempDir folder;
  CheckpointStore careful(folder / "c", {.verify_interval = 2});
  careful.save(1, sample_state(1));
  for (int write = 0; write < 6; ++write) {  // files of tensors, values and manifest
    expect_error<CheckpointError>(
        [&] {
          const PlannedFault fault(write, kFlipBit);
          careful.save(2, sample_state(2));
        },
        {"step 2 was not saved", "check the disk"});
    EXPECT_EQ(careful.find_latest(), folder / "c/step-1");
    const PlannedFault fault(write, kFlipBit);  // the next save is not read back
    careful.save(3, sample_state(3));
    EXPECT_EQ(read_bytes(folder / "c/latest"), "step-3\n");
    std::filesystem::remove_all(folder / "c/step-3");
  }
}

TEST(FolderLock, SaysOnceThatAFileSystemCannotLock) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  const NoLocks none(ENOLCK);
  const std::string log = stderr_of([&] { store.save(1, sample_state(1)); });
  expect_contains(log, {folder / "c", "cannot lock", "No locks available", "a second process"});
  EXPECT_EQ(stderr_of([&] { store.save(2, sample_state(2)); }).find("cannot lock"), std::string::npos);
  EXPECT_EQ(store.find_latest(), folder / "c/step-2");
}

}  // namespace
}  // namespace duet
