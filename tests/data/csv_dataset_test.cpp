#include <sstream>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/file_dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

class CsvDatasetTest : public ::testing::Test {
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

TEST_F(CsvDatasetTest, RefusesTextsAmongNumbersAndIds) {
  const auto data = [&](const std::string& text, std::vector<std::string> features = {}) {
    CsvDataset({.path = table(text), .target = {"y"}, .features = std::move(features)});
  };
  expect_error<DataError>([&] { data("x,y\n1,0\nNA,1\n3,0\n"); }, {"t.csv:3", "column 'x'", "'NA'"});
  std::string ids = "x,y\n";
  for (int i = 0; i < 30; ++i) ids += "id" + std::to_string(i) + ",0.5\n";
  expect_error<DataError>([&] { data(ids); }, {"column 'x'", "30 texts", "is it an id?"});
  EXPECT_EQ(CsvDataset({.path = table(ids), .target = {"y"}, .categorical = {"x"}}).values(), 30);
  expect_error<ConfigError>([&] { data("x,y\n1,0\n", {"x", "x"}); }, {"'x' twice"});
  expect_error<ConfigError>([&] { data("x,y\n1,0\n", {"x", "y"}); }, {"features holds 'y', the target"});
  EXPECT_EQ(CsvDataset({.path = table("x\ty\n1\t2\n"), .target = {"y"}, .separator = "\\t"}).size(), 1);
}

TEST_F(CsvDatasetTest, NumbersFitIntoFloat32) {
  const auto first = [&](const std::string& text, bool standardize = true) {
    return CsvDataset({.path = table(text), .target = {"y"}, .standardize = standardize}).get({0})["input"];
  };
  EXPECT_FLOAT_EQ(first("x,y\n+5,0.5\n3,1.5\n", false).item<float>(), 5);
  expect_error<DataError>([&] { first("x,y\n1e39,0.5\n2,1.5\n", false); }, {"t.csv:2", "column 'x'", "float32"});
  expect_error<DataError>([&] { first("x,y\n1e300,0.5\n2,1.5\n"); }, {"column 'x'", "deviation overflows"});
  expect_error<DataError>([&] { first("x,y\n1,1e39\n2,1.5\n"); }, {"t.csv:2", "column 'y'", "float32"});
}

// One column, of a feature and then of a target. Its fields stand between bars.
class CsvColumn : public CsvDatasetTest {
 protected:
  static std::vector<std::string> fields_of(const std::string& text) {
    std::vector<std::string> fields;
    std::istringstream rest(text);
    for (std::string field; std::getline(rest, field, '|');) fields.push_back(field);
    return fields;
  }
  void read(const std::string& column, bool told = false) const {
    for (const bool is_target : {false, true}) {
      CsvOptions options{.path = dir_ / "t.csv", .target = {is_target ? "x" : "z"}};
      if (told && is_target) options.task = "classification";
      if (told && !is_target) options.categorical = {"x"};
      std::string text = is_target ? "z,x\n" : "x,z\n", other = "0.5";
      for (const std::string& field : fields_of(column)) {
        text += is_target ? other + ",\"" + field + "\"\n" : '"' + field + "\"," + other + "\n";
        other = "1" + other;
      }
      table(text);
      const CsvDataset data(options);
      if (!is_target && !told) {
        EXPECT_GT(data.values(), 1) << column;
      }
    }
  }
  void refuse(const std::string& column, const std::string& bad) const {
    SCOPED_TRACE(column);
    expect_error<DataError>([&] { read(column); },
                            {"column 'x': found '" + bad + "'", "expected a number", "categorical"});
  }
};

TEST_F(CsvColumn, MissingValuesAreNoVotesForCategories) {
  for (const std::string missing : {"NA", "N/A", "#N/A", "n.a.", "null", "NULL", "None", "nan", "NaN", "<NA>", "?", "-",
                                    "--", ".", "\\N", "missing", "unknown", "\u2014"}) {
    refuse("1|2.5|" + missing + "|" + missing + "|" + missing, missing);
  }
  for (const std::string bad : {"not tested", "inf", "1e999"}) {
    refuse("1|2.5|3|" + bad + "|" + bad + "|" + bad + "|" + bad, bad);
  }
}

TEST_F(CsvColumn, NumbersInAnotherSpellingAndDatesAreNoCategories) {
  for (const std::string column :
       {"$3|$4", "\u20AC 3|\u20AC 4", "USD 3|USD 4.5", "3 \u20AC|4,5 \u20AC", "29 kg|30 kg", "29kg|30.5kg|NA",
        "29 kg|300 g|31 kg", "7 %|8.5%", "1,234|5,678.9", "1.234,5|2,5", "1 234|5 678", "1\u00A0234|5\u00A0678",
        "1'234|5'678", "\u22125|\u22126", "(5)|(6)", "3.5M|200K|4M", "2h 50m|19h|5h 10m", "36 months|60 months",
        "20 \u00B0C|21 \u00B0C"}) {
    refuse(column, fields_of(column).front());
  }
  for (const std::string column :
       {"10:00|10:30|10:00", "1:02:03|1:02:04", "10 am|11 pm", "2026-11-25|2026-11-25", "11/25/2026|11/26/2026",
        "25.11.26|26.11.26", "2026-11|2026-12", "25 Nov 2026|26 Nov 2026", "Nov 5|Nov 6", "2026-11-25T10:00:00Z|NA"}) {
    refuse(column, fields_of(column).front());
    EXPECT_NO_THROW(read(column, /*told=*/true));
  }
}

TEST_F(CsvColumn, OtherTextsAreCategories) {
  for (const std::string column : {"red|NA|blue", "A|B|C|1", "C85|B57|E46", "18-24|25-34|65+", "<=50K|>50K",
                                   "1st|2nd|3rd", "Q1|Q2", "S|M|L|2XL", "10th|HS-grad|Masters|Doctorate", "12A|12B",
                                   "3/5|4/5", "16:9|4:3", "type 1|type 2", "555-123-4567|555-123-4568", "may|june"}) {
    SCOPED_TRACE(column);
    EXPECT_NO_THROW(read(column));
  }
}

TEST_F(CsvDatasetTest, UnknownCategoriesAreAnErrorOrAllZeros) {
  const std::string path = table("c,y\nred,0.5\nblue,1.5\n"), other = table("c,y\ngreen,0.5\nred,1\n", "other.csv");
  expect_error<DataError>([&] { CsvDataset({.path = other, .target = {"y"}, .fit_on = path}); },
                          {"other.csv:2", "'green'", "handle_unknown: ignore"});
  const CsvDataset data({.path = other, .target = {"y"}, .handle_unknown = "ignore", .fit_on = path});
  EXPECT_TRUE(at::equal(data.get({0, 1})["input"], at::tensor({0.0F, 0.0F, 0.0F, 1.0F}).view({2, 2})));
  expect_error<DataError>(
      [&] { CsvDataset({.path = table("c,y\n,0.5\n", "gap.csv"), .target = {"y"}, .fit_on = path}); },
      {"gap.csv:2", "no value"});
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
    EXPECT_FALSE(data.get({0}).has("target"));
    EXPECT_EQ(data.values(), train.values());
    EXPECT_EQ(data.class_names(), (std::vector<std::string>{"a", "b"}));
  }
  expect_error<DataError>([&] { CsvDataset({.path = unknown}, test); }, {"no column 'kind'"});
  const std::string known = table("kind,colour,size\nb,blue,20\n", "known.csv");
  const CsvDataset data({.path = known}, test);
  data.check_fits(train);
  EXPECT_EQ(data.get({0})["target"].item<int64_t>(), 1);
  EXPECT_TRUE(CsvDataset({.path = known}, predict).get({0}).has("target"));
  EXPECT_FALSE(CsvDataset({.path = table("kind,colour,size\n,red,20\n", "x.csv")}, predict).get({0}).has("target"));
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
                            {"categorical holds 'y', the target"});
  expect_error<ConfigError>(
      [&] { CsvDataset({.path = path, .target = {"y"}, .features = {"x"}, .categorical = {"zip"}}); },
      {"'zip'", "among features: x"});
}

TEST_F(CsvDatasetTest, NamesLineAndColumnOfABadValue) {
  const auto data = [&](const std::string& text) { CsvDataset({.path = table(text), .target = {"y"}}); };
  expect_error<DataError>([&] { data("x,y\n1,0\n,1\n"); }, {"t.csv:3", "column 'x'", "no value"});
  expect_error<DataError>([&] { data("x,y\n1,0\n2,\n"); }, {"t.csv:3", "column 'y'"});
  expect_error<DataError>([&] { data("x,z\n1,0\n"); }, {"no column 'y'"});
  expect_error<DataError>([&] { data("y\n1\n"); }, {"no column beside the target"});
  expect_error<DataError>([&] { data("x,y\n"); }, {"no sample"});
  const std::string path = table("c,y\nred,0\nblue,1\n");
  const std::string wild = table("c,y\nred,7\n", "wild.csv");
  expect_error<DataError>([&] { CsvDataset({.path = wild, .target = {"y"}, .fit_on = path}); },
                          {"wild.csv:2", "0 to 1"});
}

}  // namespace
}  // namespace duet
