#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/dataset.h"
#include "io/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

NamedTensors example() {
  return {{"x", at::arange(12, at::kFloat).view({4, 3})}, {"y", at::tensor({7, 8, 9, 10}, at::kLong)}};
}

TEST(TensorDataset, YieldsRowsOfEveryTensor) {
  const TensorDataset data(example());
  ASSERT_EQ(data.size(), 4);
  const Batch batch = data.get({3, 1});
  EXPECT_TRUE(at::equal(batch["x"], at::tensor({9.F, 10.F, 11.F, 3.F, 4.F, 5.F}).view({2, 3})));
  EXPECT_TRUE(at::equal(batch["y"], at::tensor({10, 8}, at::kLong)));
}

TEST(TensorDataset, GivesCopiesWithoutGradient) {
  NamedTensors tensors = example();
  tensors[0].second.requires_grad_();
  const TensorDataset data(tensors);
  const Batch batch = data.get({0, 1, 2, 3});
  EXPECT_FALSE(batch["x"].requires_grad());
  batch["x"].zero_();
  EXPECT_EQ(data.get({3})["x"].sum().item<float>(), 30.F);
}

TEST(TensorDataset, RefusesTensorsThatDoNotMatch) {
  expect_error<DataError>([] { TensorDataset(NamedTensors{}); }, {"[TensorDataset]", "no tensor"});
  expect_error<DataError>([] { TensorDataset({{"x", at::ones({2})}, {"y", at::ones({3})}}); },
                          {"'y'", "[3]", "'x' has [2]"});
  expect_error<DataError>([] { TensorDataset({{"x", at::ones({2})}, {"x", at::ones({2})}}); },
                          {"'x'", "two of this name"});
  expect_error<DataError>([] { TensorDataset({{"x", at::scalar_tensor(1)}}); }, {"'x'", "one row per sample"});
  expect_error<DataError>([] { TensorDataset({{"x", at::ones({0, 3})}}); }, {"'x'", "[0, 3]"});
  expect_error<DataError>([] { TensorDataset({{"x", at::Tensor()}}); }, {"'x'", "undefined"});
}

TEST(TensorDataset, ReadsASafetensorsFile) {
  const TempDir dir;
  write_safetensors(dir / "data.safetensors", example());
  const TensorDataset data = TensorDataset::from_file(dir / "data.safetensors");
  EXPECT_EQ(data.get({2})["y"].item<int64_t>(), 9);
  write_safetensors(dir / "bad.safetensors", {{"x", at::ones({2})}, {"y", at::ones({3})}});
  expect_error<DataError>([&] { TensorDataset::from_file(dir / "bad.safetensors"); }, {"bad.safetensors", "'y'"});
  expect_error<DataError>([&] { TensorDataset::from_file(dir / "none.safetensors"); }, {"none.safetensors"});
}

}  // namespace
}  // namespace duet
