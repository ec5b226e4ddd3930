#include <filesystem>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/detail/pictures.h"
#include "data/file_dataset.h"
#include "io/png.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

std::string grey_picture(int64_t level, int64_t height = 4, int64_t width = 6) {
  return encode_png(at::full({height, width, 3}, level, at::kByte));
}

// Two classes: ants 10, 20; bees 100, 110, 120.
class ImageFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"set/bees", "set/ants"}) std::filesystem::create_directories(dir_ / folder);
    for (const int level : {10, 20}) dir_.write("set/ants/" + std::to_string(level) + ".png", grey_picture(level));
    for (const int level : {100, 110, 120})
      dir_.write("set/bees/" + std::to_string(level) + ".png", grey_picture(level));
    dir_.write("set/bees/notes.txt", "no picture");
  }
  TempDir dir_;
};

TEST_F(ImageFolderTest, GivesPicturesAndTheNumbersOfTheirFolders) {
  const ImageFolder data({.root = dir_ / "set"});
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"ants", "bees"}));
  ASSERT_EQ(data.size(), 5);
  EXPECT_EQ(data.max_label(), 1);
  const Batch batch = data.get({4, 0, 1});
  EXPECT_EQ(batch["image"].sizes(), at::IntArrayRef({3, 3, 4, 6}));
  EXPECT_EQ(batch["image"].scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(batch["target"], at::tensor({1, 0, 0}, at::kLong)));
  EXPECT_NEAR(batch["image"][0][0][0][0].item<double>() * 255, 120, 1e-3);
  EXPECT_EQ(data.sample_name(4), "bees/120.png");
  EXPECT_NEAR(ImageFolder({.root = dir_ / "set", .channels = 1}).get({1})["image"].mean().item<double>() * 255, 20,
              1e-3);
}

TEST_F(ImageFolderTest, SplitsShareNoPictureAndHaveAll) {
  const auto paths = [&](const std::string& split) {
    const ImageFolder data({.root = dir_ / "set", .split = split, .val_fraction = 0.4, .split_seed = 3});
    std::vector<std::string> all;
    for (int64_t i = 0; i < data.size(); ++i) all.push_back(data.path(i));
    return all;
  };
  std::vector<std::string> both = paths("train");
  EXPECT_EQ(both.size(), 3U);
  for (const std::string& path : paths("val")) both.push_back(path);
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, paths("all"));
  EXPECT_EQ(ImageFolder({.root = dir_ / "set", .limit = 2}).size(), 2);
}

TEST_F(ImageFolderTest, ChecksThatClassesAreThoseOfTheTrainingData) {
  std::filesystem::create_directories(dir_ / "other/bees");
  dir_.write("other/bees/1.png", grey_picture(1));
  const ImageFolder train({.root = dir_ / "set"}), other({.root = dir_ / "other"});
  expect_error<ConfigError>([&] { other.check_fits(train); }, {"ants, bees", "set classes"});
  const ImageFolder told({.root = dir_ / "other", .classes = {"ants", "bees"}});
  told.check_fits(train);
  EXPECT_EQ(told.get({0})["target"].item<int64_t>(), 1);
}

TEST_F(ImageFolderTest, NumbersClassesAsTheTrainingDataDoes) {
  std::filesystem::create_directories(dir_ / "other/bees");
  dir_.write("other/bees/1.png", grey_picture(1));
  const ImageFolder train({.root = dir_ / "set"});
  const ImageFolder other({.root = dir_ / "other"}, {.training = &train});
  other.check_fits(train);
  EXPECT_EQ(other.get({0})["target"].item<int64_t>(), 1);
  EXPECT_EQ(other.class_names(), (std::vector<std::string>{"ants", "bees"}));
  // The classes of a checkpoint come before those of folders that may have gone since.
  const ImageFolder later({.root = dir_ / "other"}, {.training = &train, .classes = {"ants", "apes", "bees"}});
  EXPECT_EQ(later.get({0})["target"].item<int64_t>(), 2);
  std::filesystem::create_directories(dir_ / "other/cats");
  dir_.write("other/cats/1.png", grey_picture(1));
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "other"}, {.training = &train}); },
                          {"'cats'", "classes: ants, bees"});
}

TEST_F(ImageFolderTest, GivesPicturesWithoutTargetsToPredict) {
  const ImageFolder train({.root = dir_ / "set"});
  const DatasetUse use{.training = &train, .predicts = true};
  for (const char* folder : {"new", "new/monday"}) std::filesystem::create_directories(dir_ / folder);
  dir_.write("new/b.png", grey_picture(30));
  dir_.write("new/monday/a.png", grey_picture(40));
  const ImageFolder data({.root = dir_ / "new"}, use);
  const Batch batch = data.get({0, 1});
  EXPECT_FALSE(batch.has("target"));
  EXPECT_EQ(batch.size(), 2);
  EXPECT_EQ(data.sample_name(1), "monday/a.png");
  EXPECT_EQ(data.class_names(), train.classes());
  EXPECT_TRUE(data.labels().empty());
  EXPECT_TRUE(ImageFolder({.root = dir_ / "set"}, use).get({0}).has("target")) << "folders of classes";
  const std::string list = dir_.write("list.csv", "image\nb.png\n");
  EXPECT_FALSE(ImageFolder({.root = dir_ / "new", .manifest = list}, use).get({0}).has("target"));
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "new/monday"}, {.training = &train}); },
                          {"has no folders", "one for each class"});
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "new", .manifest = list}); }, {"no column 'target'"});
  std::filesystem::create_directories(dir_ / "none");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "none"}, use); }, {"none", "found no .png"});
}

TEST_F(ImageFolderTest, ReadsMasksBesideThePictures) {
  std::filesystem::create_directories(dir_ / "pictures");
  std::filesystem::create_directories(dir_ / "masks");
  dir_.write("pictures/a.png", grey_picture(50));
  const ImageFolderOptions options{.root = dir_ / "pictures", .masks = dir_ / "masks"};
  expect_error<DataError>([&] { ImageFolder{options}; }, {"pictures/a.png", "has no mask", "a.png"});
  dir_.write("masks/a.png", grey_picture(1));
  expect_error<DataError>([&] { ImageFolder{options}.get({0}); }, {"masks/a.png", "in colours"});
}

TEST(MaskLabels, AreTheirValuesOrThePlacesOfThem) {
  const at::Tensor pixels = at::tensor({0, 255, 7, 0}, at::kLong).view({2, 2});
  EXPECT_TRUE(at::equal(MaskLabels({}).classes(pixels, "m.png"), pixels));
  EXPECT_TRUE(
      at::equal(MaskLabels({7, 0}).classes(pixels, "m.png"), at::tensor({1, 255, 0, 1}, at::kLong).view({2, 2})));
  EXPECT_TRUE(
      at::equal(MaskLabels({0, 7, 255}).classes(pixels, "m.png"), at::tensor({0, 2, 1, 0}, at::kLong).view({2, 2})));
  expect_error<DataError>([&] { MaskLabels({0, 255}).classes(pixels, "m.png"); },
                          {"'m.png' holds 7", "mask_values: 0 255"});
}

TEST(MaskLabels, HaveNames) {
  const at::Tensor mask = at::tensor({0, 255, 2}, at::kLong);
  EXPECT_NO_THROW(check_classes(mask, "m.png", {"ground", "tree", "house"}));
  EXPECT_NO_THROW(check_classes(at::full({3}, 255, at::kLong), "m.png", {"ground"}));
  expect_error<DataError>([&] { check_classes(mask, "m.png", {"ground", "tree"}); },
                          {"'m.png' holds class 2", "0 to 1 (ground, tree)", "classes"});
}

TEST_F(ImageFolderTest, SaysHowManyFilesItLeavesOut) {
  for (const char* name : {"set/bees/a.webp", "set/bees/b.webp", "set/stray.png"}) dir_.write(name, grey_picture(1));
  const auto warning = [](const ImageFolderOptions& options) {
    return testing::stderr_of([&] { ImageFolder{options}; });
  };
  EXPECT_THAT(warning({.root = dir_ / "set"}), ::testing::HasSubstr("4 files are left out"));  // and notes.txt
  std::filesystem::remove(dir_ / "set/bees/notes.txt");
  EXPECT_THAT(warning({.root = dir_ / "set"}), ::testing::HasSubstr("such as '" + (dir_ / "set/stray.png")));
  for (const char* name : {"set/bees/a.webp", "set/bees/b.webp", "set/stray.png"}) std::filesystem::remove(dir_ / name);
  EXPECT_THAT(warning({.root = dir_ / "set"}), ::testing::Not(::testing::HasSubstr("left out")));
}

TEST_F(ImageFolderTest, ReadsAManifest) {
  dir_.write("list.csv", "image,target\nants/10.png,crawls\nbees/100.png,flies\nbees/110.png,flies\n");
  const ImageFolder data({.root = dir_ / "set", .manifest = dir_ / "list.csv"});
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"crawls", "flies"}));
  EXPECT_TRUE(at::equal(data.get({0, 1, 2})["target"], at::tensor({0, 1, 1}, at::kLong)));
  dir_.write("list.csv", "image,target\nants/10.png,crawls\nants/11.png,crawls\n");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set", .manifest = dir_ / "list.csv"}); },
                          {"list.csv:3", "ants/11.png"});
}

TEST_F(ImageFolderTest, WarnsOfAPictureThatASplitListNamesTwice) {
  const std::string list = dir_.write("list.csv", "image,target\nants/10.png,a\nants/20.png,b\n./ants/10.png,a\n");
  const auto said = [&](const std::string& split) {
    return testing::stderr_of(
        [&] { ImageFolder({.root = dir_ / "set", .manifest = list, .split = split, .val_fraction = 0.5}); });
  };
  EXPECT_THAT(said("train"), ::testing::HasSubstr("list.csv:4: names"));
  EXPECT_EQ(said("all"), "");
}

TEST_F(ImageFolderTest, SortsNumbersOfAManifestAndRefusesEmptyTargets) {
  const std::string list = dir_.write("list.csv", "image,target\nants/10.png,10\nants/20.png,9\n");
  EXPECT_EQ(ImageFolder({.root = dir_ / "set", .manifest = list}).classes(), (std::vector<std::string>{"9", "10"}));
  dir_.write("list.csv", "image,target\nants/10.png,10\nants/20.png,\n");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set", .manifest = list}); },
                          {"list.csv:3", "found no target"});
}

TEST_F(ImageFolderTest, TakesNumbersOfAManifestForThePredictionOfNumbers) {
  const std::string list = dir_.write("list.csv", "image,target\nants/10.png,-0.5\nants/20.png,9\nbees/100.png,9\n");
  const ImageFolderOptions options{.root = dir_ / "set", .manifest = list, .task = "regression"};
  const ImageFolder data(options);
  EXPECT_TRUE(at::equal(data.get({0, 1, 2})["target"], at::tensor({-0.5F, 9.0F, 9.0F})));
  EXPECT_TRUE(data.class_names().empty() && data.labels().empty());
  EXPECT_EQ(data.max_label(), -1);
  EXPECT_TRUE(at::equal(ImageFolder(options, {.training = &data}).get({1})["target"], at::tensor({9.0F})));
  const ImageFolder classes({.root = dir_ / "set", .manifest = list}, {.training = &data});
  expect_error<ConfigError>([&] { classes.check_fits(data); }, {"task is classification", "regression"});
  const ImageFolder unlabelled({.root = dir_ / "set"}, {.training = &data, .predicts = true});
  unlabelled.check_fits(data);
  EXPECT_FALSE(unlabelled.get({0}).has("target"));
  dir_.write("list.csv", "image,target\nants/10.png,-0.5\nants/20.png,red\n");
  expect_error<DataError>([&] { ImageFolder{options}; }, {"list.csv:3", "'target'", "'red'", "a number"});
  expect_error<ConfigError>([&] { ImageFolder({.root = dir_ / "set", .task = "regression"}); }, {"set manifest"});
}

TEST_F(ImageFolderTest, SaysHowAnEmptyPartGetsSamples) {
  const auto part = [&](const std::string& split, double share) {
    ImageFolder({.root = dir_ / "set", .split = split, .val_fraction = share});
  };
  expect_error<DataError>([&] { part("val", 0.05); }, {"split 'val' of 5", "raise val_fraction"});
  expect_error<DataError>([&] { part("train", 0.95); }, {"split 'train' of 5", "lower val_fraction"});
}

TEST_F(ImageFolderTest, PassesHiddenFilesAndNamesLinksBack) {
  std::filesystem::create_directories(dir_ / "set/ants/.cache");
  dir_.write("set/ants/.cache/1.png", grey_picture(1));
  dir_.write("set/ants/._10.png", "no picture");
  std::filesystem::create_directories(dir_ / "set/__MACOSX/ants");
  dir_.write("set/__MACOSX/ants/._10.png", "no picture");
  std::filesystem::create_symlink(std::filesystem::path(dir_ / "set/ants/10.png"), dir_ / "set/ants/link.png");
  const ImageFolder data({.root = dir_ / "set"});
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"ants", "bees"}));
  EXPECT_EQ(data.size(), 6);
  EXPECT_EQ(data.path(2), dir_ / "set/ants/link.png");
  std::filesystem::create_directory_symlink("..", dir_ / "set/ants/up");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}); }, {"set/ants/up", "symbolic links"});
}

// A disk that is not mounted, pictures that were not fetched.
TEST_F(ImageFolderTest, NamesLinksThatLeadNowhere) {
  for (const char* name : {"set/wasps", "set/stray.png", "set/ants/gone.png", "set/ants/folder", "set/ants/notes"}) {
    std::filesystem::create_symlink("/nowhere/x", dir_ / name);
    for (const bool predicts : {false, true}) {
      expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}, {.predicts = predicts}); },
                              {dir_ / name, "leads nowhere", "correct the link"});
    }
    std::filesystem::remove(dir_ / name);
  }
  std::filesystem::create_symlink("itself.png", dir_ / "set/ants/itself.png");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}); }, {"itself.png", "leads nowhere"});
}

TEST_F(ImageFolderTest, TakesNoPartsOfADatasetForClasses) {
  const auto classes = [&](const std::vector<std::string>& folders, std::vector<std::string> told = {}) {
    std::filesystem::remove_all(dir_ / "parts");
    for (const std::string& folder : folders) {
      std::filesystem::create_directories(dir_ / "parts/" + folder);
      dir_.write("parts/" + folder + "/1.png", grey_picture(1));
    }
    return ImageFolder({.root = dir_ / "parts", .classes = std::move(told)}).classes();
  };
  using Names = std::vector<std::string>;
  for (const Names& folders : {Names{"train/a", "train/b", "val/a", "val/b"},
                               {"Train2017", "test"},
                               {"training"},
                               {"images", "masks"},
                               {"fold_1", "fold_2"},
                               {"wrapped/a", "wrapped/b"}}) {
    expect_error<DataError>([&] { classes(folders); }, {"parts' holds the folders", "set root", "classes"});
  }
  EXPECT_EQ(classes({"bus", "train"}), (Names{"bus", "train"}));
  EXPECT_EQ(classes({"test/a", "train/a"}, {"train", "test"}), (Names{"train", "test"}));
  EXPECT_EQ(classes({"cats/day", "cats/night", "dogs/day"}), (Names{"cats", "dogs"}));
}

TEST_F(ImageFolderTest, NamesWhatIsWrong) {
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "none"}); }, {"none", "folder that exists"});
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set/ants"}); }, {"has no folders"});
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set", .classes = {"ants"}}); },
                          {"'bees'", "classes: ants", "add it there"});
  const DatasetUse use{.classes = {"ants"}};  // of a checkpoint
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}, use); },
                          {"'bees'", "the trained classes: ants; move it away"});
  expect_error<ConfigError>([&] { ImageFolder({.root = dir_ / "set", .channels = 2}); }, {"channels is 2"});
  dir_.write("set/ants/large.png", grey_picture(1, 8, 8));
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}).get({0, 2}); }, {"large.png", "Resize"});
  dir_.write("set/ants/large.png", "torn");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}).get({2}); }, {"large.png", "neither PNG nor JPEG"});
}

}  // namespace
}  // namespace duet
