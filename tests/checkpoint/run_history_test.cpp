// What checkpoints say of the run that saved them, and those of a run that went back.
#include <filesystem>
#include <fstream>
#include <string>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/detail/bits.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;
using testing::stderr_of;

RunIdentity sample_identity() {
  return {.config = {{"model.dropout", "0.1"}, {"train.'a.b'", "\"ü \\\"q\\\"\""}},
          .data = "Csv, 100 samples, 0123",
          .classes = {"ant", "bee"},
          .encoding = R"({"type":"Csv"})",
          .launch = "torchrun 1234",
          .parent = "runs/a/checkpoints/step-7",
          .world_size = 4,
          .unchecked = UncheckedSteps{4820, 612, 17}};
}

void expect_same_identity(const RunIdentity& a, const RunIdentity& b) {
  EXPECT_EQ(a.config, b.config);
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(a.classes, b.classes);
  EXPECT_EQ(a.encoding, b.encoding);
  EXPECT_EQ(a.launch, b.launch);
  EXPECT_EQ(a.parent, b.parent);
  EXPECT_EQ(a.world_size, b.world_size);
  ASSERT_EQ(a.unchecked.has_value(), b.unchecked.has_value());
  if (!a.unchecked) return;
  EXPECT_EQ(a.unchecked->confirmed, b.unchecked->confirmed);
  EXPECT_EQ(to_text(*a.unchecked), to_text(*b.unchecked));
}

TEST(RunIdentity, IsInTheManifestOfEverySave) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  store.set_identity(sample_identity());
  const std::string path = store.save(1, sample_state(1));
  store.save_in_background(2, sample_state(2));
  store.set_identity({.launch = "another"});  // not of the one under way
  expect_same_identity(CheckpointStore::read_manifest(path).run, sample_identity());
  expect_same_identity(CheckpointStore::read_manifest(folder / "c/step-2").run, sample_identity());
  expect_same_identity(CheckpointStore::read(folder / "c/step-2").run, sample_identity());
  EXPECT_EQ(CheckpointStore::read_manifest(store.save(3, sample_state(3))).run.launch, "another");
}

// Puts another text in the place of a manifest, with the hash that it needs.
void rewrite_manifest(const std::string& path, const std::function<void(nlohmann::ordered_json&)>& change) {
  auto json = nlohmann::ordered_json::parse(read_bytes(path));
  json.erase("manifest_xxh3");
  change(json);
  std::string text = json.dump(2);
  text.resize(text.size() - 2);
  std::ofstream(path, std::ios::binary) << text << ",\n  \"manifest_xxh3\": \"" << xxh3_hex(text.data(), text.size())
                                        << "\"\n}\n";
}

TEST(RunIdentity, IsUnknownInCheckpointsFromBeforeIt) {
  const TempDir folder;
  const std::string path = CheckpointStore(folder / "c").save(1, sample_state(1));
  rewrite_manifest(path + "/manifest.json", [](auto& json) { EXPECT_EQ(json.erase("run"), 1U); });
  const LoadedCheckpoint loaded = CheckpointStore::read(folder / "c");
  expect_same_state(sample_state(1), loaded.state);
  expect_same_identity(loaded.run, {});
}

TEST(RunIdentity, ManifestsThatLeaveTensorsOutAreRefused) {
  const TempDir folder;
  StateDict state = sample_state(1);
  state.set("model.nothing", at::empty({0, 2}));
  const std::string path = CheckpointStore(folder / "c").save(1, state);
  rewrite_manifest(path + "/manifest.json", [](auto& json) {
    auto& tensors = json["tensors"];
    for (auto it = tensors.begin(); it != tensors.end(); ++it) {
      if ((*it)["name"] == "model.nothing") return static_cast<void>(tensors.erase(it));
    }
  });
  expect_error<CheckpointError>([&] { CheckpointStore::load(path); }, {"model.nothing"});
}

std::string latest_of(const CheckpointStore& store) { return fs::path(*store.find_latest()).filename(); }

TEST(SuspectCheckpoints, ArePassedOverAndStayVerifiable) {
  const TempDir folder;
  const CheckpointStore reader(folder / "c");
  CheckpointStore store(folder / "c", {.max_keep = -1});
  for (const int64_t step : {10, 20, 30}) store.save(step, sample_state(step));
  const std::string told = stderr_of([&] { store.mark_suspect_after(10, "the code has changed"); });
  expect_contains(told, {"step-30, step-20", "at step 10"});
  EXPECT_EQ(CheckpointStore::verify(folder / "c/step-20").suspect, "the code has changed");
  expect_contains(stderr_of([&] { EXPECT_EQ(latest_of(reader), "step-10"); }), {"step-30' is suspect: the code"});
  EXPECT_EQ(CheckpointStore::find(folder / "c/step-30"), folder / "c/step-30") << "whoever names one gets it";
  EXPECT_EQ(store.list().size(), 3U);
  store.save(30, sample_state(30));  // another one
  EXPECT_EQ(latest_of(reader), "step-30");
}

TEST(SuspectCheckpoints, AreTakenWhereThereAreNoOthersAndSayWhy) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  store.save(10, sample_state(10));
  store.mark_suspect_after(0, "the code has changed");
  EXPECT_EQ(store.set_aside_after(5), folder / "c.1");
  const std::string told =
      stderr_of([&] { expect_same_state(sample_state(10), CheckpointStore::load(folder / "c.1")); });
  expect_contains(told, {"step-10' is suspect: the code has changed"});
}

TEST(SuspectCheckpoints, WhatComesBeforeAllDoubtIsKept) {
  const TempDir folder;
  CheckpointStore store(folder / "c", {.max_keep = 2});
  for (int64_t step = 10; step <= 70; step += 10) {
    store.set_identity({.unchecked = UncheckedSteps{100, 100, step < 60 ? 25 : 60}});
    store.save(step, sample_state(step));
    const bool is_in_doubt = step >= 40 && step < 60;
    EXPECT_EQ(store.list().size(), is_in_doubt ? 3U : step == 10 ? 1U : 2U) << step;
    if (is_in_doubt) {
      EXPECT_EQ(fs::path(store.list().back()).filename(), "step-20");
    }
  }
}

TEST(RunThatWentBack, LeavesTheLaterStepsBesideTheRoot) {
  const TempDir folder;
  CheckpointStore store(folder / "c", {.max_keep = -1});
  for (const int64_t step : {100, 200, 300}) store.save(step, sample_state(step));
  store.set_best("step-300");
  store.set_best("step-200", CheckpointStore::best_file("val/loss"));
  store.set_best("step-300", CheckpointStore::best_file("acc"));
  std::string log = stderr_of([&] { store.save(250, sample_state(250)); });
  expect_contains(log, {"steps after 250", folder / "c.1"});
  EXPECT_EQ(latest_of(store), "step-250");
  EXPECT_EQ(store.list().size(), 3U);
  EXPECT_EQ(read_bytes(folder / "c/latest"), "step-250\n");
  EXPECT_FALSE(store.find_best());
  EXPECT_FALSE(store.find_best("best_acc"));
  EXPECT_EQ(store.find_best("best_val_loss"), folder / "c/step-200");
  CheckpointStore left(folder / "c.1");
  EXPECT_EQ(latest_of(left), "step-300");
  EXPECT_EQ(left.find_best(), folder / "c.1/step-300");

  EXPECT_EQ(store.set_aside_after(100), folder / "c.2");  // a number of its own
  EXPECT_EQ(latest_of(store), "step-100");
  EXPECT_EQ(read_bytes(folder / "c/latest"), "step-100\n");
  EXPECT_EQ(CheckpointStore(folder / "c.2").list().size(), 2U);
  EXPECT_EQ(store.set_aside_after(100), "");
  EXPECT_EQ(store.set_aside_after(-1), folder / "c.3");
  EXPECT_FALSE(store.find_latest());
  EXPECT_FALSE(fs::exists(folder / "c/latest"));
}

// Else a damaged step 400 would hand the run over to step 300 of the other.
TEST(RunThatWentBack, LeavesTheLaterStepsOfTheOtherAtItsFirstSaveHoweverLateThatIs) {
  const TempDir folder;
  for (const int64_t step : {100, 200, 300}) CheckpointStore(folder / "c").save(step, sample_state(step));
  CheckpointStore store(folder / "c", {.max_keep = -1});
  store.go_on_from(200);
  EXPECT_EQ(latest_of(store), "step-300");  // not before it saves
  const std::string log = stderr_of([&] { store.save(400, sample_state(400)); });
  expect_contains(log, {"steps after 200", folder / "c.1"});
  store.save_in_background(500, sample_state(500));
  EXPECT_EQ(store.list().size(), 4U);
  EXPECT_EQ(latest_of(CheckpointStore(folder / "c.1")), "step-300");
  for (const std::string step : {"500", "400"}) fs::resize_file(folder / "c/step-" + step + "/model.safetensors", 3);
  EXPECT_EQ(latest_of(CheckpointStore(folder / "c")), "step-200");
}

// A process has died when it had moved one of two.
TEST(RunThatWentBack, LeavesNoLaterStepToAResumeAndTheNextOpenMovesTheRest) {
  const TempDir folder;
  CheckpointStore store(folder / "c", {.max_keep = -1});
  for (const int64_t step : {100, 200, 300}) store.save(step, sample_state(step));
  store.set_best("step-200");
  fs::create_directories(folder / "c.2");
  fs::rename(folder / "c/step-300", folder / "c.2/step-300");
  folder.write("c/abandoned", "100 2\n");
  EXPECT_EQ(latest_of(store), "step-100");
  EXPECT_FALSE(store.find_best());
  store.remove_leftovers();
  EXPECT_EQ(store.list().size(), 1U);
  EXPECT_EQ(read_bytes(folder / "c/latest"), "step-100\n");
  EXPECT_FALSE(fs::exists(folder / "c/abandoned"));
  EXPECT_EQ(CheckpointStore(folder / "c.2").list().size(), 2U);
  EXPECT_EQ(CheckpointStore(folder / "c.2").find_best(), folder / "c.2/step-200");
  folder.write("c/abandoned", "../x");  // no note of ours
  EXPECT_EQ(latest_of(store), "step-100");
}

// On the file system of the checkpoints, and not on that of the link.
TEST(RunThatWentBack, LeavesTheLaterStepsBesideWhereALinkLeads) {
  const TempDir folder;
  fs::create_directories(folder / "far/c");
  fs::create_directories(folder / "w");
  fs::create_directory_symlink("../far/c", folder / "w/checkpoints");
  CheckpointStore store(CheckpointStore::root_of(folder / "w"));
  for (const int64_t step : {1, 2}) store.save(step, sample_state(step));
  EXPECT_TRUE(fs::equivalent(store.set_aside_after(1), folder / "far/c.1"));
  EXPECT_TRUE(fs::equivalent(CheckpointStore::find(folder / "w"), folder / "far/c/step-1"));
}

}  // namespace
}  // namespace duet
