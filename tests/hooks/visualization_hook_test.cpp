#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/data_loader.h"
#include "data/file_dataset.h"
#include "data/transform.h"
#include "hooks/prediction_hooks.h"
#include "io/image.h"
#include "io/png.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using Pictures = std::set<std::string>;

class VisualizationHookTest : public ::testing::Test {
 protected:
  VisualizationHookTest() {
    run_.context.work_dir = dir_.path().string();
    run_.context.progress.step = 700;
  }

  // A pass over `batches` batches of two samples each.
  void pass(Hook& hook, int64_t batches, void (Hook::*point)(TrainContext&) = &Hook::after_val_iter) {
    for (run_.context.evaluation.batch_index = 0; run_.context.evaluation.batch_index < batches;
         ++run_.context.evaluation.batch_index) {
      const Batch batch = {{"image", at::rand({2, 1, 4, 4})}, {"target", at::zeros({2, 4, 4}, at::kLong)}};
      const NamedTensors outputs = {{"prediction", at::rand({2, 3, 4, 4})}};
      run_.context.evaluation.batch = &batch;
      run_.context.evaluation.outputs = &outputs;
      (hook.*point)(run_.context);
      run_.context.evaluation.batch = nullptr;
      run_.context.evaluation.outputs = nullptr;
    }
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path() / "vis_data", none)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  TempDir dir_;
  FakeRun run_;
};

TEST_F(VisualizationHookTest, DrawsEveryIntervalthBatchOfAPass) {
  VisualizationHook hook({.draw = true, .interval = 3});
  pass(hook, 7);
  EXPECT_EQ(files(), (Pictures{"val_10_700.png", "val_11_700.png", "val_4_700.png", "val_5_700.png"}));
  run_.context.progress.step = 800;
  pass(hook, 3, &Hook::after_test_iter);
  EXPECT_EQ(files().size(), 6U);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "vis_data/test_4_800.png"));
  pass(hook, 3, &Hook::after_predict_iter);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "vis_data/predict_4_800.png"));
}

// 24 samples in batches of two: 12 for one process, three for each of four ranks.
TEST_F(VisualizationHookTest, DrawsAsManyPicturesOnSeveralRanksAsInOneProcess) {
  testing::FakeCommunicator four(0, 4);
  VisualizationHook hook({.draw = true, .interval = 6, .max_samples = 1});
  pass(hook, 12);
  EXPECT_EQ(files(), (Pictures{"val_10_700.png", "val_22_700.png"})) << "the sixth batch and the twelfth";
  run_.context.communicator = &four;
  run_.context.progress.step = 800;
  pass(hook, 3);
  EXPECT_EQ(files(), (Pictures{"val_10_700.png", "val_16_800.png", "val_22_700.png", "val_8_800.png"}))
      << "its own of the fifth to eighth, and of the ninth to twelfth";
  run_.context.is_main = false;
  run_.context.progress.step = 900;
  pass(hook, 3);
  EXPECT_EQ(files().size(), 4U) << "the others draw none";
}

TEST_F(VisualizationHookTest, FileAndListenerGetTheSamePicture) {
  std::vector<std::pair<std::string, at::Tensor>> heard;
  auto listening = run_.context.log.listen(
      [&](const std::string& name, const at::Tensor& pixels) { heard.emplace_back(name, pixels); },
      [](const std::string&, const std::string&) {});
  VisualizationHook hook({.draw = true, .interval = 1, .max_samples = 1});
  pass(hook, 2);
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard[0].first, "val_0");
  EXPECT_EQ(heard[1].first, "val_2");
  EXPECT_TRUE(at::equal(read_image(dir_ / "vis_data/val_0_700.png"), heard[0].second));
  EXPECT_TRUE(at::equal(read_image(dir_ / "vis_data/val_2_700.png"), heard[1].second));
  EXPECT_EQ(files().size(), 2U);

  run_.context.work_dir.clear();  // without a folder the listener still gets it
  pass(hook, 1);
  EXPECT_EQ(heard.size(), 3U);
}

// A picture is not worth a run, nor are those of other samples lost with it.
TEST_F(VisualizationHookTest, GoesOnWhereASampleCannotBePainted) {
  VisualizationHook hook(
      {.draw = true, .interval = 1, .painter = [](const Batch&, const NamedTensors&, int64_t sample) {
         if (sample == 0) throw DataError("[Painter] found a bad sample, expected a good one");
         return at::zeros({1, 1, 3}, at::kByte);
       }});
  const std::string said = testing::stderr_of([&] { pass(hook, 2); });
  EXPECT_NE(said.find("bad sample"), std::string::npos) << said;
  EXPECT_EQ(said.find("bad sample"), said.rfind("bad sample")) << said;
  EXPECT_EQ(files(), (Pictures{"val_1_700.png", "val_3_700.png"}));
}

// Class folders as a config reads and normalizes them. Two of the files differ in their ending alone.
TEST_F(VisualizationHookTest, DrawsPicturesAsTheirFilesAreAndNamesThemAfterThese) {
  const at::Tensor pixels = at::randint(0, 256, {6, 8, 3}, at::kByte);
  for (const char* folder : {"set/cats", "set/dogs"}) std::filesystem::create_directories(dir_ / folder);
  for (const char* name : {"set/cats/1.png", "set/cats/tom.png", "set/dogs/1.PNG", "set/dogs/1.png"}) {
    write_png(dir_ / name, pixels);
  }
  std::vector<std::unique_ptr<const Transform>> transforms;
  transforms.push_back(make_normalize({.mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}}));
  const auto folder = std::make_shared<ImageFolder>(ImageFolderOptions{.root = dir_ / "set"});
  DataLoader data(std::make_shared<TransformedDataset>(folder, std::move(transforms)), {.batch_size = 4});
  run_.context.evaluation.data = &data;
  data.start_epoch(0);
  const Batch batch = data.next().value();
  const NamedTensors outputs = {{"prediction", at::rand({4, 2})}};
  run_.context.evaluation.batch = &batch;
  run_.context.evaluation.outputs = &outputs;
  VisualizationHook hook({.draw = true, .interval = 1, .paint = {.zoom = 1}});
  hook.after_val_iter(run_.context);
  EXPECT_EQ(files(),
            (Pictures{"val_cats-1_700.png", "val_cats-tom_700.png", "val_dogs-1.3_700.png", "val_dogs-1_700.png"}));
  constexpr int64_t kFrame = 4;
  for (const std::string& name : files()) {
    const at::Tensor panel = read_image(dir_ / ("vis_data/" + name)).narrow(0, kFrame, 6).narrow(1, kFrame, 8);
    EXPECT_TRUE(at::equal(panel, pixels)) << name;
  }
  run_.context.evaluation = {};
}

TEST_F(VisualizationHookTest, OpensEachFileWithTheViewerOfTheDesktop) {
  std::filesystem::create_directories(dir_ / "bin");
  dir_.write("bin/xdg-open", "#!/bin/sh\necho \"$1\" >>\"" + (dir_ / "opened") + "\"\n");
  std::filesystem::permissions(dir_ / "bin/xdg-open", std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  const ScopedVariable search("PATH", (dir_ / "bin") + ":" + path);
  const ScopedVariable display("DISPLAY", ":99");
  VisualizationHook hook({.draw = true, .interval = 1, .max_samples = 1, .show = true, .wait_time = 0.001});
  pass(hook, 2);
  expect_error<ConfigError>([] { VisualizationHook({.show = true}); }, {"show is true", "draw: true"});
  Pictures opened;
  while (opened.size() < 2) {  // the viewers run on their own
    std::ifstream file(dir_ / "opened");
    for (std::string line; std::getline(file, line);) opened.insert(line);
    std::this_thread::yield();
  }
  EXPECT_EQ(opened, (Pictures{dir_ / "vis_data/val_0_700.png", dir_ / "vis_data/val_2_700.png"}));
}

}  // namespace
}  // namespace duet
