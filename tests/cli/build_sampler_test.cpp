#include <algorithm>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/build.h"
#include "data/sampler.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/npy_bytes.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

DataConfig data_config(const std::string& keys) {
  const std::string text = "model: {type: Mlp}\ntrainer: {max_steps: 1}\ndata: {train: {type: Npy, " + keys + "}}\n";
  return *parse_run_config(ConfigNode::parse_text(text, "c.yaml"), "c").train;
}

const TensorDataset& three() {
  static const TensorDataset data({{"x", at::zeros({3, 2})}, {"w", at::tensor({1, 0, 3})}});
  return data;
}

// Of 4000 draws of samples 0, 1 and 2.
std::vector<int64_t> counts_of(const std::string& keys) {
  const auto sampler = build_sampler(three(), data_config("sampler: weighted, samples_per_epoch: 4000, " + keys), 1);
  const std::vector<int64_t> drawn = sampler->next(4000);
  return {std::count(drawn.begin(), drawn.end(), 0), std::count(drawn.begin(), drawn.end(), 1),
          std::count(drawn.begin(), drawn.end(), 2)};
}

std::string weights_file(const std::vector<double>& weights) {
  return testing::npy_bytes(testing::npy_entries("<f8", std::to_string(weights.size()) + ","),
                            testing::bytes_of(weights));
}

TEST(SampleWeightsOfAConfig, AreATensorOfTheDatasetOrAFile) {
  const TempDir dir;
  const std::string file = dir.write("w.npy", weights_file({1, 0, 3}));
  for (const std::string& weights : {std::string("w"), file}) {
    const std::vector<int64_t> counts = counts_of("sample_weights: " + weights);
    EXPECT_EQ(counts[1], 0);
    EXPECT_NEAR(static_cast<double>(counts[2]), 3000, 6 * std::sqrt(4000 * 0.75 * 0.25));  // six standard deviations
  }
}

TEST(SampleWeightsOfAConfig, NameWhatDoesNotFit) {
  const TempDir dir;
  const auto of_file = [&](const std::vector<double>& numbers) {
    return "sample_weights: " + dir.write("w.npy", weights_file(numbers));
  };
  expect_error<ConfigError>([&] { counts_of(of_file({1, 2})); }, {"data.train.sample_weights", "[2]", "expected [3]"});
  expect_error<ConfigError>([&] { counts_of(of_file({1, -2, 3})); }, {"data.train", "weight of -2"});
  expect_error<ConfigError>([] { counts_of("sample_weights: x"); }, {"sample_weights", "[3, 2]"});
  expect_error<ConfigError>([] { counts_of("sample_weights: y"); },
                            {"data.train.sample_weights", "no tensor of this dataset", "x, w"});
  expect_error<DataError>([] { counts_of("sample_weights: none.npy"); }, {"none.npy"});
  expect_error<ConfigError>([] { counts_of("sample_weights: w, class_weights: [1]"); },
                            {"class_weights", "one of them"});
  expect_error<ConfigError>([] { counts_of("shuffle: true"); }, {"class_weights", "sample_weights"});
  EXPECT_THAT(testing::stderr_of([] { data_config("sample_weights: w"); }),
              ::testing::HasSubstr("data.train.sample_weights has no effect with sampler: default"));
}

}  // namespace
}  // namespace duet
