#include "data/file_dataset.h"
#include <filesystem>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "io/png.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

std::string grey_picture(int64_t level, int64_t height = 4, int64_t width = 6) {
  return encode_png(at::full({height, width, 3}, level, at::kByte));
}

bool has_target(const Batch& batch) {
  const auto& items = batch.items();
  return std::any_of(items.begin(), items.end(), [](const auto& item) { return item.first == "target"; });
}

// Two classes: ants 10, 20; bees 100, 110, 120.
class ImageFolderTest : public testing::Test {
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

TEST_F(ImageFolderTest, SaysThatAClassHasNoPicture) {
  std::filesystem::create_directories(dir_ / "set/cats");
  ::testing::internal::CaptureStderr();
  const ImageFolder data({.root = dir_ / "set"});
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("set/cats' holds no .png"), std::string::npos);
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"ants", "bees", "cats"}));
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
  EXPECT_FALSE(has_target(batch));
  EXPECT_EQ(batch.size(), 2);
  EXPECT_EQ(data.sample_name(1), "monday/a.png");
  EXPECT_EQ(data.class_names(), train.classes());
  EXPECT_TRUE(data.labels().empty());
  EXPECT_TRUE(has_target(ImageFolder({.root = dir_ / "set"}, use).get({0}))) << "folders of classes";
  const std::string list = dir_.write("list.csv", "image\nb.png\n");
  EXPECT_FALSE(has_target(ImageFolder({.root = dir_ / "new", .manifest = list}, use).get({0})));
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "new/monday"}, {.training = &train}); },
                          {"has no folders", "one for each class"});
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "new", .manifest = list}); }, {"no column 'target'"});
  std::filesystem::create_directories(dir_ / "none");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "none"}, use); }, {"none", "found no .png"});
}

TEST_F(ImageFolderTest, ALimitTakesAllClassesAlike) {
  const auto names = [&](int64_t limit) {
    const ImageFolder data({.root = dir_ / "set", .limit = limit});
    std::vector<std::string> all;
    for (int64_t i = 0; i < data.size(); ++i) all.push_back(data.sample_name(i));
    return all;
  };
  EXPECT_EQ(names(2), (std::vector<std::string>{"ants/10.png", "bees/100.png"}));
  EXPECT_EQ(names(3), (std::vector<std::string>{"ants/10.png", "ants/20.png", "bees/100.png"}));
  EXPECT_EQ(names(9).size(), 5U);
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

TEST_F(ImageFolderTest, ReadsAManifest) {
  dir_.write("list.csv", "image,target\nants/10.png,crawls\nbees/100.png,flies\nbees/110.png,flies\n");
  const ImageFolder data({.root = dir_ / "set", .manifest = dir_ / "list.csv"});
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"crawls", "flies"}));
  EXPECT_TRUE(at::equal(data.get({0, 1, 2})["target"], at::tensor({0, 1, 1}, at::kLong)));
  dir_.write("list.csv", "image,target\nants/10.png,crawls\nants/11.png,crawls\n");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set", .manifest = dir_ / "list.csv"}); },
                          {"list.csv:3", "ants/11.png"});
}

TEST_F(ImageFolderTest, SortsNumbersOfAManifestAndRefusesEmptyTargets) {
  const std::string list = dir_.write("list.csv", "image,target\nants/10.png,10\nants/20.png,9\n");
  EXPECT_EQ(ImageFolder({.root = dir_ / "set", .manifest = list}).classes(), (std::vector<std::string>{"9", "10"}));
  dir_.write("list.csv", "image,target\nants/10.png,10\nants/20.png,\n");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set", .manifest = list}); },
                          {"list.csv:3", "found no target"});
}

TEST_F(ImageFolderTest, PassesHiddenFilesAndNamesLinksBack) {
  std::filesystem::create_directories(dir_ / "set/ants/.cache");
  dir_.write("set/ants/.cache/1.png", grey_picture(1));
  dir_.write("set/ants/._10.png", "no picture");
  std::filesystem::create_symlink(std::filesystem::path(dir_ / "set/ants/10.png"), dir_ / "set/ants/link.png");
  const ImageFolder data({.root = dir_ / "set"});
  EXPECT_EQ(data.size(), 6);
  EXPECT_EQ(data.path(2), dir_ / "set/ants/link.png");
  std::filesystem::create_directory_symlink("..", dir_ / "set/ants/up");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}); }, {"set/ants/up", "a link back to"});
}

TEST_F(ImageFolderTest, NamesWhatIsWrong) {
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "none"}); }, {"none", "folder that exists"});
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set/ants"}); }, {"has no folders"});
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set", .classes = {"ants"}}); },
                          {"'bees'", "classes: ants"});
  expect_error<ConfigError>([&] { ImageFolder({.root = dir_ / "set", .channels = 2}); }, {"channels is 2"});
  dir_.write("set/ants/large.png", grey_picture(1, 8, 8));
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}).get({0, 2}); }, {"large.png", "Resize"});
  dir_.write("set/ants/large.png", "torn");
  expect_error<DataError>([&] { ImageFolder({.root = dir_ / "set"}).get({2}); }, {"large.png", "neither PNG nor JPEG"});
}

class CsvDatasetTest : public testing::Test {
 protected:
  std::string table(const std::string& text, const std::string& name = "t.csv") const { return dir_.write(name, text); }
  TempDir dir_;
};

TEST_F(CsvDatasetTest, GivesNumbersStandardizedAndTextsAsCategories) {
  const CsvDataset data({.path = table("size,colour,kind\n1,red,b\n2,blue,a\n3,red,b\n"), .target = {"kind"}});
  const Batch batch = data.get({0, 1, 2});
  const float unit = std::sqrt(1.5F);
  EXPECT_TRUE(at::allclose(batch["input"], at::tensor({-unit, 0.F, 1.F, 0.F, 1.F, 0.F, unit, 0.F, 1.F}).view({3, 3})));
  EXPECT_TRUE(at::equal(batch["target"], at::tensor({1, 0, 1}, at::kLong)));
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(data.max_label(), 1);
}

TEST_F(CsvDatasetTest, TellsClassesFromNumbers) {
  const auto dtype = [&](const std::string& values, const std::string& task) {
    return CsvDataset({.path = table("x,y\n" + values), .target = {"y"}, .task = task})
        .get({0})["target"]
        .scalar_type();
  };
  EXPECT_EQ(dtype("1,0\n2,1\n3,2\n", "auto"), at::kLong);
  EXPECT_EQ(dtype("1,0\n2,1\n3,2\n", "regression"), at::kFloat);
  EXPECT_EQ(dtype("1,0.5\n2,1\n", "auto"), at::kFloat);
  EXPECT_EQ(dtype("1,17\n2,40\n", "auto"), at::kFloat);
  EXPECT_EQ(dtype("1,17\n2,40\n", "classification"), at::kLong);
}

TEST_F(CsvDatasetTest, EvaluationsUseTheNumbersOfTheTrainingRows) {
  const std::string path = table("x,y\n0,0\n10,1\n20,0\n30,1\n40,0\n");
  const auto part = [&](const std::string& split) {
    return CsvDataset({.path = path, .target = {"y"}, .split = split, .val_fraction = 0.4, .split_seed = 1});
  };
  const CsvDataset train = part("train"), val = part("val");
  EXPECT_EQ(train.size(), 3);
  EXPECT_EQ(val.size(), 2);
  val.check_fits(train);
  EXPECT_NEAR(train.get({0, 1, 2})["input"].mean().item<double>(), 0, 1e-6);
  const std::string other = table("x,y\n100,0\n200,1\n", "other.csv");
  expect_error<ConfigError>(
      [&] { CsvDataset({.path = other, .target = {"y"}}).check_fits(CsvDataset({.path = path, .target = {"y"}})); },
      {"other.csv", "fit_on", "t.csv"});
  const CsvDataset fitted({.path = other, .target = {"y"}, .fit_on = path});
  fitted.check_fits(CsvDataset({.path = path, .target = {"y"}}));
  EXPECT_NEAR(fitted.get({0})["input"].item<double>(), (100 - 20) / std::sqrt(200.0), 1e-5);
}

TEST_F(CsvDatasetTest, GivesTheWeightsOfRows) {
  const std::string path = table("x,y,w\n0,0,2\n10,1,0.5\n20,0,1\n");
  const CsvDataset data({.path = path, .target = {"y"}, .weight = "w"});
  EXPECT_EQ(data.values(), 1) << "the weight is no feature";
  EXPECT_TRUE(at::equal(data.get({2, 1})["weight"], at::tensor({1.0F, 0.5F})));
  EXPECT_FALSE(CsvDataset({.path = path, .target = {"y"}}).get({0}).has("weight"));
  expect_error<DataError>([&] { CsvDataset({.path = path, .weight = "v"}); }, {"[Csv]", "'v'"});
  const std::string texts = table("x,w\n0,much\n", "texts.csv");
  expect_error<DataError>([&] { CsvDataset({.path = texts, .weight = "w"}); }, {"texts.csv:2", "'w'", "much"});
}

TEST_F(CsvDatasetTest, ConstantColumnsStayConstant) {
  std::string text = "x,y\n";
  for (int i = 0; i < 100; ++i) text += i % 2 == 0 ? "0.1,0\n" : "0.1,1\n";
  EXPECT_EQ(CsvDataset({.path = table(text), .target = {"y"}}).get({0, 1})["input"].abs().max().item<double>(), 0);
}

TEST_F(CsvDatasetTest, SortsClassesThatAreNumbers) {
  const CsvDataset data({.path = table("x,y\n1,10\n2,9\n"), .target = {"y"}, .task = "classification"});
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"9", "10"}));
  EXPECT_EQ(data.get({0})["target"].item<int64_t>(), 1);
}

TEST_F(CsvDatasetTest, RefusesTextsAmongNumbersAndIds) {
  const auto data = [&](const std::string& text, std::vector<std::string> features = {}) {
    CsvDataset({.path = table(text), .target = {"y"}, .features = std::move(features)});
  };
  expect_error<DataError>([&] { data("x,y\n1,0\nNA,1\n3,0\n"); }, {"t.csv:3", "column 'x'", "'NA'", "2 other rows"});
  expect_error<DataError>([&] { data("x,y\n1,0.5\n2,?\n3,1.5\n"); }, {"t.csv:3", "column 'y'", "'?'"});
  std::string ids = "x,y\n";
  for (int i = 0; i < 30; ++i) ids += "id" + std::to_string(i) + ",0.5\n";
  expect_error<DataError>([&] { data(ids); }, {"column 'x'", "30 texts", "is it an id?"});
  expect_error<ConfigError>([&] { data("x,y\n1,0\n", {"x", "x"}); }, {"'x' twice"});
  expect_error<ConfigError>([&] { data("x,y\n1,0\n", {"x", "y"}); }, {"the target 'y'"});
  EXPECT_EQ(CsvDataset({.path = table("x\ty\n1\t2\n"), .target = {"y"}, .separator = "\\t"}).size(), 1);
}

TEST_F(CsvDatasetTest, ReadsOtherTablesAsTheTrainingDataWasRead) {
  const CsvDataset train({.path = table("size,kind,colour\n0,b,red\n40,a,blue\n900,b,red\n"),
                          .target = {"kind"},
                          .features = {"size", "colour"},
                          .split = "train",
                          .val_fraction = 0.34,
                          .split_seed = 1});
  const DatasetUse test{.training = &train}, predict{.training = &train, .predicts = true};
  const std::string unknown = table("id,colour,size\n7,red,20\n", "new.csv");
  for (const std::vector<std::string>& target : {std::vector<std::string>(), {"kind"}}) {
    const CsvDataset data({.path = unknown, .target = target}, predict);
    data.check_fits(train);
    EXPECT_FALSE(has_target(data.get({0})));
    EXPECT_EQ(data.values(), train.values());
    EXPECT_EQ(data.class_names(), (std::vector<std::string>{"a", "b"}));
  }
  expect_error<DataError>([&] { CsvDataset({.path = unknown}, test); }, {"no column 'kind'"});
  const std::string known = table("kind,colour,size\nb,blue,20\n", "known.csv");
  const CsvDataset data({.path = known}, test);
  data.check_fits(train);
  EXPECT_EQ(data.get({0})["target"].item<int64_t>(), 1);
  EXPECT_TRUE(has_target(CsvDataset({.path = known}, predict).get({0})));
  EXPECT_FALSE(has_target(CsvDataset({.path = table("kind,colour,size\n,red,20\n", "x.csv")}, predict).get({0})));
  expect_error<ConfigError>([&] { CsvDataset({.path = known, .features = {"size"}}, test); },
                            {"known.csv", "features is size, expected size, colour", "leave features out"});
  expect_error<ConfigError>([&] { CsvDataset({.path = known, .target = {"size"}}, test); }, {"target is size"});
  expect_error<ConfigError>(
      [&] { CsvDataset({.path = known, .target = {"kind"}, .fit_on = dir_ / "t.csv"}, test).check_fits(train); },
      {"known.csv", "leave fit_on out"});
}

TEST_F(CsvDatasetTest, PredictsSeveralNumbers) {
  const CsvDataset data({.path = table("x,low,high\n1,10,30\n2,20,50\n"), .target = {"low", "high"}});
  const Batch batch = data.get({1, 0});
  EXPECT_TRUE(at::equal(batch["target"], at::tensor({20.F, 50.F, 10.F, 30.F}).view({2, 2})));
  EXPECT_EQ(batch["input"].size(1), 1);
  EXPECT_EQ(data.max_label(), -1);
  const auto refused = [&](const std::string& text, const CsvOptions& options) {
    CsvOptions told = options;
    told.path = table(text);
    CsvDataset{told};
  };
  expect_error<DataError>([&] { refused("x,a,b\n1,2,red\n3,4,blue\n", {.target = {"a", "b"}}); },
                          {"column 'b'", "found texts, expected numbers", "a, b"});
  expect_error<DataError>([&] { refused("x,a,b\n1,2,\n", {.target = {"a", "b"}}); }, {"t.csv:2", "column 'b'"});
  expect_error<ConfigError>([&] { refused("x,a\n1,2\n", {.target = {"a", "a"}}); }, {"target holds 'a' twice"});
  expect_error<ConfigError>([&] { refused("x,a,b\n1,0,1\n", {.target = {"a", "b"}, .task = "classification"}); },
                            {"task is classification", "a, b"});
}

TEST_F(CsvDatasetTest, TakesNumbersForCategoriesWhereItIsTold) {
  const std::string path = table("zip,y\n9,0.5\n10,1.5\n9,2.5\n");
  const CsvDataset data({.path = path, .target = {"y"}, .categorical = {"zip"}});
  EXPECT_TRUE(at::equal(data.get({0, 1})["input"], at::eye(2)));
  const std::string other = table("zip,y\n11,0.5\n", "other.csv");
  expect_error<DataError>([&] { CsvDataset({.path = other}, {.training = &data}); },
                          {"other.csv:2", "column 'zip'", "'11'", "9, 10", "leave the row out"});
  expect_error<DataError>([&] { CsvDataset({.path = path, .target = {"y"}, .categorical = {"zap"}}); },
                          {"no column 'zap'"});
  expect_error<ConfigError>([&] { CsvDataset({.path = path, .target = {"y"}, .categorical = {"y"}}); },
                            {"categorical holds the target 'y'", "task: classification"});
  expect_error<ConfigError>(
      [&] { CsvDataset({.path = path, .target = {"y"}, .features = {"x"}, .categorical = {"zip"}}); },
      {"'zip'", "among features: x"});
  std::string ids = "x,y\n";
  for (int i = 0; i < 30; ++i) ids += "id" + std::to_string(i) + ",0.5\n";
  EXPECT_EQ(CsvDataset({.path = table(ids), .target = {"y"}, .categorical = {"x"}}).values(), 30);
}

TEST_F(CsvDatasetTest, NamesItsClasses) {
  const auto names = [&](const std::string& values) {
    return CsvDataset({.path = table("x,y\n" + values), .target = {"y"}}).class_names();
  };
  EXPECT_EQ(names("1,b\n2,a\n"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names("1,1\n2,0\n"), (std::vector<std::string>{"0", "1"}));
  EXPECT_TRUE(names("1,1.5\n2,0\n").empty());
}

TEST_F(CsvDatasetTest, NamesLineAndColumnOfABadValue) {
  const auto data = [&](const std::string& text) { CsvDataset({.path = table(text), .target = {"y"}}); };
  expect_error<DataError>([&] { data("x,y\n1,0\n,1\n"); }, {"t.csv:3", "column 'x'", "no value"});
  expect_error<DataError>([&] { data("x,y\n1,0\n2,\n"); }, {"t.csv:3", "column 'y'"});
  expect_error<DataError>([&] { data("x,z\n1,0\n"); }, {"no column 'y'"});
  expect_error<DataError>([&] { data("y\n1\n"); }, {"no column beside the target"});
  expect_error<DataError>([&] { data("x,y\n"); }, {"no sample"});
  const std::string path = table("c,y\nred,0\nblue,1\n"), other = table("c,y\ngreen,0\n", "other.csv");
  expect_error<DataError>([&] { CsvDataset({.path = other, .target = {"y"}, .fit_on = path}); },
                          {"other.csv:2", "'green'", "blue, red"});
  const std::string wild = table("c,y\nred,7\n", "wild.csv");
  expect_error<DataError>([&] { CsvDataset({.path = wild, .target = {"y"}, .fit_on = path}); },
                          {"wild.csv:2", "0 to 1"});
}

}  // namespace
}  // namespace duet
