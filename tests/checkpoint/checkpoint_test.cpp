#include "checkpoint/checkpoint.h"
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "base/error.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "checkpoint/weights_file.h"
#include "io/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

namespace fs = std::filesystem;

void write_bytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

using Names = std::vector<std::string>;

TEST(CheckpointStore, GivesBackEveryBitThatWasSaved) {
  const TempDir folder;
  const StateDict state = odd_state();
  CheckpointStore store(folder / "work/checkpoints");
  const std::string path = store.save(12, state);
  EXPECT_EQ(path, folder / "work/checkpoints/step-12");
  expect_same_state(state, CheckpointStore::load(path));
  EXPECT_EQ(read_bytes(folder / "work/checkpoints/latest"), "step-12\n");
  EXPECT_EQ(names_in(path), (Names{"manifest.json", "model.safetensors", "state.json", "state.safetensors"}));
  for (const CheckpointTensor& tensor : CheckpointStore::verify(path).tensors) {
    // What xxh128sum prints for an empty file.
    EXPECT_TRUE(tensor.bytes != 0 || tensor.xxh3 == "99aa06d3014798d86001c324468d497f") << tensor.xxh3;
  }
}

TEST(CheckpointStore, GivesTheWeightsOfAHookAFileOfTheirOwn) {
  StateDict state = sample_state(1);
  const std::vector<std::string> own = {"hooks.ema.weights.fc.weight", "hooks.ema.weights.fc.bias",
                                        "hooks.ema_2.weights.fc.weight"};
  const std::vector<std::string> rest = {
      "hooks.ema.weights",     "hooks.ema.steps",      "hooks.model.weights.x",
      "hooks.state.weights.x", "hooks..weights.x",     "hooks.a/b.weights.x",
      "hooks.a.b.weights.x",   "hooks.ema.weightsx.y", "hooks." + std::string(65, 'a') + ".weights.x"};
  for (const auto* names : {&own, &rest}) {
    for (const std::string& name : *names) state.set(name, at::full({3}, static_cast<double>(name.size())));
  }
  const TempDir folder;
  const std::string path = CheckpointStore(folder / "c").save(1, state);
  expect_same_state(state, CheckpointStore::load(path));
  EXPECT_EQ(names_in(path), (Names{"ema.safetensors", "ema_2.safetensors", "manifest.json", "model.safetensors",
                                   "state.json", "state.safetensors"}));
  EXPECT_EQ(read_safetensors(path + "/ema.safetensors").at(1).first, "fc.weight");
  EXPECT_EQ(read_safetensors(path + "/state.safetensors").size(), rest.size() + 1);
}

TEST(CheckpointStore, FindsTheBestThatWasNoted) {
  const TempDir folder;
  CheckpointStore store(folder / "root");
  EXPECT_FALSE(store.find_best());
  for (const int64_t step : {3, 4}) store.save(step, sample_state(step));
  store.set_best(CheckpointStore::folder_name(3));
  EXPECT_EQ(store.find_best(), folder / "root/step-3");
  EXPECT_EQ(read_bytes(folder / "root/best"), "step-3\n");
  fs::remove_all(folder / "root/step-3");
  EXPECT_FALSE(store.find_best());
  fs::create_directory(folder / "elsewhere");
  for (const char* text : {"", "../elsewhere\n", "step-4/..\n"}) {  // no name of a checkpoint
    write_bytes(folder / "root/best", text);
    EXPECT_FALSE(store.find_best()) << text;
  }
  fs::remove(folder / "root/best");
  ASSERT_EQ(mkfifo((folder / "root/best").c_str(), 0600), 0);
  EXPECT_FALSE(store.find_best()) << "a pipe that nobody writes to";
  fs::remove(folder / "root/best");
  write_bytes(folder / "root/best", "step-4\n");
  fs::resize_file(folder / "root/best", uint64_t{1} << 40);
  EXPECT_FALSE(store.find_best()) << "more than any name";
}

TEST(CheckpointStore, ListsByNumberNewestFirst) {
  const TempDir folder;
  CheckpointStore store(folder / "c", {.max_keep = -1});
  for (const int64_t step : {9, 10, 100}) store.save(step, sample_state(step));
  for (const char* other : {"step-", "step-x", "step-007", "step-1e3", "step--1", "step-99999999999999999999", "a"}) {
    fs::create_directory(folder / ("c/" + std::string(other)));
  }
  EXPECT_EQ(store.list(), (Names{folder / "c/step-100", folder / "c/step-10", folder / "c/step-9"}));
  EXPECT_EQ(store.find_latest(), folder / "c/step-100");
}

TEST(CheckpointStore, DetectsEveryFlippedByteAndEveryOtherLengthAndNamesTheFile) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  StateDict state = sample_state(3);
  state.set("hooks.ema.weights.fc.weight", at::ones({4}));  // a file of its own
  const std::string path = store.save(3, state);
  for (const std::string& name : names_in(path)) {
    const std::string file = path + "/" + name, bytes = read_bytes(file);
    const auto expect_found = [&](const std::string& changed, bool by_loads) {
      write_bytes(file, changed);
      expect_error<CheckpointError>([&] { CheckpointStore::verify(path); }, {name});
      if (by_loads) expect_error<CheckpointError>([&] { CheckpointStore::load(path); }, {name});
    };
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string flipped = bytes;
      flipped[i] ^= static_cast<char>(1 << i % 8);
      expect_found(flipped, i % 16 == 0);
      expect_found(bytes.substr(0, i), false);
    }
    expect_found(bytes + "\n", true);
    fs::remove(file);
    expect_error<CheckpointError>([&] { CheckpointStore::load(path); }, {name});
    write_bytes(file, bytes);
  }
  expect_same_state(state, CheckpointStore::load(path));
}

TEST(CheckpointStore, NamesTheTensorThatChanged) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  const std::string path = store.save(3, sample_state(3));
  for (const CheckpointTensor& tensor : CheckpointStore::verify(path).tensors) {
    const std::string file = path + "/" + tensor.file, bytes = read_bytes(file);
    std::string changed = bytes;
    changed[tensor.offset + tensor.bytes - 1] ^= 1;
    write_bytes(file, changed);
    expect_error<CheckpointError>([&] { CheckpointStore::load(path); }, {file, "'" + tensor.name + "'"});
    write_bytes(file, bytes);
  }
}

TEST(CheckpointStore, DetectsFilesOfAnotherCheckpoint) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  const std::string one = store.save(1, sample_state(1)), two = store.save(2, sample_state(2));
  for (const std::string& name : names_in(one)) {
    const std::string bytes = read_bytes(two + "/" + name);
    write_bytes(two + "/" + name, read_bytes(one + "/" + name));
    expect_error<CheckpointError>([&] { CheckpointStore::verify(two); }, {two});
    write_bytes(two + "/" + name, bytes);
  }
  fs::remove_all(two);
  fs::copy(one, two);
  expect_error<CheckpointError>([&] { CheckpointStore::verify(two); }, {"that of step 1"});
  fs::rename(two, folder / "c/best");
  expect_same_state(sample_state(1), CheckpointStore::load(folder / "c/best"));
}

// With the right hash of itself, as a program might write it: who looks and who loads read the same or nothing.
TEST(CheckpointStore, RefusesAManifestThatSaysOtherwiseThanTheFile) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  const std::string path = store.save(3, sample_state(3));
  const Manifest manifest = CheckpointStore::read_manifest(path);
  const std::vector<std::function<void(Manifest&)>> lies = {
      [](Manifest& lie) { lie.tensors[1].offset += 4; },
      [](Manifest& lie) { lie.tensors[1].dtype = "I32"; },
      [](Manifest& lie) { lie.tensors[1].shape = {5, 3}; },
      [](Manifest& lie) { lie.tensors.push_back(lie.tensors[1]); },
  };
  for (const auto& tell : lies) {
    Manifest lie = manifest;
    tell(lie);
    write_bytes(path + "/manifest.json", checkpoint_format::encode_manifest(lie));
    expect_error<CheckpointError>([&] { CheckpointStore::verify(path); }, {"model.safetensors", "'model.fc.weight'"});
    expect_error<CheckpointError>([&] { CheckpointStore::load(path); }, {"model.safetensors", "'model.fc.weight'"});
  }
  write_bytes(path + "/manifest.json", checkpoint_format::encode_manifest(manifest));
  expect_same_state(sample_state(3), CheckpointStore::load(path));
}

TEST(CheckpointStore, PassesOverDamagedOnes) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  for (const int64_t step : {1, 2, 3}) store.save(step, sample_state(step));
  write_bytes(folder / "c/step-3/state.json", "{}");
  EXPECT_EQ(store.find_latest(), folder / "c/step-2");
  expect_same_state(sample_state(2), CheckpointStore::load(folder / "c"));
  fs::remove_all(folder / "c/step-2");
  fs::create_directory(folder / "c/step-2");
  EXPECT_EQ(store.find_latest(), folder / "c/step-1");
  fs::resize_file(folder / "c/step-1/model.safetensors", 3);
  expect_error<CheckpointError>([&] { store.find_latest(); }, {"none of the 3", folder / "c"});
}

TEST(CheckpointStore, FollowsFilesThatNameACheckpoint) {
  const TempDir folder;
  CheckpointStore store(folder / "c");
  for (const int64_t step : {1, 2}) store.save(step, sample_state(step));
  store.set_best("step-1");
  expect_same_state(sample_state(1), CheckpointStore::load(folder / "c/best"));
  expect_same_state(sample_state(2), CheckpointStore::load(folder / "c/latest"));
  EXPECT_FALSE(read_weights({.path = folder / "c/latest"}).empty());
  fs::remove_all(folder / "c/step-1");
  expect_error<CheckpointError>([&] { CheckpointStore::load(folder / "c/best"); },
                                {folder / "c/best", "'step-1'", "not there"});
  const std::string notes = folder.write("c/notes.txt", "step-2 is good");
  expect_error<CheckpointError>([&] { CheckpointStore::load(notes); }, {notes, "is a file"});
}

TEST(CheckpointStore, SaysWhatAPathIsIfItIsNoCheckpoint) {
  const TempDir folder;
  const std::string file = folder.write("file", "x");
  expect_error<CheckpointError>([&] { CheckpointStore::load(folder / "none"); }, {folder / "none", "does not exist"});
  expect_error<CheckpointError>([&] { CheckpointStore::load(file); }, {file, "is a file"});
  expect_error<CheckpointError>([&] { CheckpointStore::load(folder.path()); }, {"manifest.json", "step-N"});
  fs::create_directory(folder / "step-4");
  expect_error<CheckpointError>([&] { CheckpointStore::load(folder / "step-4"); }, {"step-4", "save never ended"});
}

TEST(CheckpointStore, KeepsTheNewestAndTheNamedOnes) {
  const TempDir folder;
  CheckpointStore store(folder / "c", {.max_keep = 2});
  for (int64_t step = 1; step <= 5; ++step) store.save(step, sample_state(step), {folder / "c/step-2"});
  EXPECT_EQ(names_in(folder / "c"), (Names{"latest", "step-2", "step-4", "step-5"}));
  store.save(6, sample_state(6), {"step-4"});
  EXPECT_EQ(names_in(folder / "c"), (Names{"latest", "step-4", "step-5", "step-6"}));
  for (const int max_keep : {0, 1, -1}) {  // at least two; all
    CheckpointStore other(folder / std::to_string(max_keep), {.max_keep = max_keep});
    for (int64_t step = 1; step <= 4; ++step) other.save(step, sample_state(step));
    EXPECT_EQ(other.list().size(), max_keep < 0 ? 4u : 2u);
  }
}

TEST(CheckpointStore, KeepsOldOnesUntilTwoNewerVerify) {
  const TempDir folder;
  CheckpointStore first(folder / "c", {.max_keep = -1});
  for (int64_t step = 1; step <= 4; ++step) first.save(step, sample_state(step));
  write_bytes(folder / "c/step-4/state.json", "{}");
  write_bytes(folder / "c/step-3/state.json", "{}");
  CheckpointStore resumed(folder / "c", {.max_keep = 2});
  resumed.save(5, sample_state(5));
  EXPECT_EQ(names_in(folder / "c"), (Names{"latest", "step-2", "step-3", "step-4", "step-5"}));
  resumed.save(6, sample_state(6));
  EXPECT_EQ(names_in(folder / "c"), (Names{"latest", "step-5", "step-6"}));
}

TEST(CheckpointStore, NamesPathAndReasonIfItCannotSave) {
  const TempDir folder;
  const std::string file = folder.write("file", "x");
  for (const std::string& root : {file, file + "/sub", file + "/sub/deeper"}) {
    CheckpointStore store(root);
    expect_error<CheckpointError>([&] { store.save(1, sample_state(1)); },
                                  {"step 1", file, "Not a directory", "training state in memory is intact"});
  }
  CheckpointStore good(folder / "c");
  StateDict odd;
  odd.set("model.c", at::ones({1}, at::kComplexDouble));
  expect_error<CheckpointError>([&] { good.save(1, odd); }, {"'c'", "view_as_real"});
  StateDict bad_name;
  bad_name.set("\xff", true);
  expect_error<CheckpointError>([&] { good.save(1, bad_name); }, {"UTF-8"});
  EXPECT_TRUE(names_in(folder / "c").empty());
  expect_error<ConfigError>([&] { good.save(-1, {}); }, {"-1"});
  expect_error<ConfigError>([] { CheckpointStore(""); }, {"work_dir"});
}

}  // namespace
}  // namespace duet
