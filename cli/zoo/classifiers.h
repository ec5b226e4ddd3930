#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include "../../base/options.h"
#include "../../core/losses.h"

namespace duet {

class Task;

struct MlpOptions {
  int64_t in_features = 784;  // values of one sample, whatever its shape
  int64_t num_classes = 10;
  std::vector<int64_t> hidden = {128};  // sizes of the hidden layers; empty: logistic regression
  double dropout = 0;                   // after every hidden layer, in [0, 1)
  LossOptions loss{};

  static const OptionFields& fields();
};

// Linear layers with ReLU between them. Takes "image" or "input" [N, ...] (uint8 is divided by 255) and "target":
// int64 [N], or float for losses of regression.
std::unique_ptr<Task> make_mlp(const MlpOptions& options = {});

struct SmallCnnOptions {
  int64_t num_classes = 10;
  int64_t in_channels = 1;
  int64_t image_size = 28;                   // height and width of the images
  std::vector<int64_t> channels = {16, 32};  // one convolution block each; every block halves the image
  double dropout = 0.1;                      // before the linear layer, in [0, 1)
  LossOptions loss{};

  static const OptionFields& fields();
};

// Blocks of convolution 3x3, batch norm, ReLU and 2x2 max pool, then dropout and one linear layer. Takes "image"
// [N, in_channels, size, size] (uint8 is divided by 255) and "target" as Mlp. About 8 ms per step of 64 Fashion-MNIST
// images on two cores.
std::unique_ptr<Task> make_small_cnn(const SmallCnnOptions& options = {});

}  // namespace duet
