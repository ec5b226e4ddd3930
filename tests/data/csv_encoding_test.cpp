// What the numbers of a table mean is kept as a text, comes back from it, and is compared.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/dataset.h"
#include "data/file_dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

class CsvEncoding : public ::testing::Test {
 protected:
  CsvDataset table(const std::string& rows, const DatasetUse& use = {}, const std::string& fit_on = "") const {
    return CsvDataset({.path = dir_.write("t.csv", "a,c,y\n" + rows), .target = {"y"}, .fit_on = fit_on}, use);
  }
  CsvDataset kept(const std::string& encoding) const {
    return CsvDataset({.path = dir_ / "gone.csv", .target = {"y"}}, {.encoding = encoding, .reads = false});
  }
  const std::string rows_ = "1,u,x\n2,v,z\n4,w,x\n";
  TempDir dir_;
};

TEST_F(CsvEncoding, ComesBackWithoutTheFile) {
  const CsvDataset data = table(rows_);
  const CsvDataset back = kept(data.encoding());
  EXPECT_EQ(back.encoding(), data.encoding());
  EXPECT_EQ(back.values(), 4);
  EXPECT_EQ(back.max_label(), 1);
  EXPECT_EQ(back.class_names(), (std::vector<std::string>{"x", "z"}));
  data.check_fits(back);
  EXPECT_EQ(SubsetDataset(std::make_shared<CsvDataset>(data), {1}).encoding(), data.encoding());
}

TEST_F(CsvEncoding, OfACheckpointHoldsForOtherRows) {
  const std::string encoding = table(rows_).encoding();
  const at::Tensor input = table(rows_).get({0})["input"];
  const std::string shifted = "1,u,x\n102,v,z\n104,w,x\n";
  EXPECT_TRUE(at::equal(table(shifted, {.encoding = encoding}).get({0})["input"], input));
  EXPECT_FALSE(at::equal(table(shifted).get({0})["input"], input));
  const std::string fit_on = dir_.write("fit.csv", "a,c,y\n" + shifted);
  expect_error<ConfigError>([&] { table(rows_, {.encoding = encoding}, fit_on); },
                            {"column 'a'", "the checkpoint was trained with", "leave fit_on out"});
}

TEST_F(CsvEncoding, BytesThatAreNoUtf8AreRefusedAtTheirLine) {
  EXPECT_EQ(table("1,\xC3\xA4,x\n2,u,z\n").class_names().size(), 2);
  expect_error<DataError>([&] { table("1,u,x\n2,H\xFC,z\n"); }, {"t.csv:3", "'H\\xfc' is no UTF-8"});
}

TEST_F(CsvEncoding, NamesTheFirstDifference) {
  const CsvDataset trained = kept(table(rows_).encoding());
  const auto differs = [&](const std::string& rows, const std::vector<std::string>& words) {
    expect_error<ConfigError>([&] { table(rows).check_fits(trained); }, words);
  };
  differs("2,u,x\n2,v,z\n5,w,x\n",
          {"t.csv", "/features/0/mean (column 'a') is 3.0, expected 2.33", "fit_on", "load_from"});
  differs("1,u,x\n2,v,z\n4,k,x\n", {"/features/1/categories/0 (column 'c') is \"k\", expected \"u\""});
  differs("1,u,x\n2,v,z\n4,v,x\n", {"/features/1/categories/2 (column 'c') is nothing, expected \"w\""});
  differs("1,7,x\n2,8,z\n4,9,x\n", {"/features/1/", "(column 'c')"});
  differs("1,u,x\n2,v,z\n4,w,k\n", {"/class_count is 3, expected 2"});
  const CsvDataset few = kept(table("0,u,x\n2,v,z\n").encoding());
  expect_error<ConfigError>([&] { table("0,u,x\n2,v,z\n0,y,x\n2,v,z\n").check_fits(few); },
                            {"/features/1/categories/- (column 'c') is \"y\", expected nothing"});
}

TEST_F(CsvEncoding, OfAnotherDatasetIsLeftAside) {
  const CsvDataset data = table(rows_, {.encoding = R"({"type":"Text","characters":"abc"})"});
  EXPECT_EQ(data.encoding(), table(rows_).encoding());
  expect_error<CheckpointError>([&] { table(rows_, {.encoding = R"({"type":"Csv","features":3})"}); },
                                {"damaged", "use another checkpoint"});
}

}  // namespace
}  // namespace duet
