#include "benchmarks/cases.h"
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include "benchmarks/models.h"
#include "cli/zoo/classifiers.h"
#include "cli/zoo/gpt.h"
#include "examples/08_models/lstm.h"
#include "examples/08_models/resnet.h"
#include "examples/08_models/unet.h"

namespace duet::benchmarks {

namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kVocabulary = 65;

Batch images(const std::vector<int64_t>& shape) {
  return {{"image", at::randn(shape)}, {"target", at::randint(kClasses, {shape[0]}, at::kLong)}};
}

Batch tokens(int64_t samples, int64_t length, int64_t vocabulary = kVocabulary) {
  return {{"input", at::randint(vocabulary, {samples, length}, at::kLong)},
          {"target", at::randint(vocabulary, {samples, length}, at::kLong)}};
}

Batch pixels(int64_t samples, int64_t side) {
  return {{"image", at::randn({samples, 1, side, side})},
          {"target", at::randint(kClasses, {samples, side, side}, at::kLong)}};
}

std::unique_ptr<Task> mlp(int64_t inputs, const std::vector<int64_t>& hidden) {
  MlpOptions options;
  options.in_features = inputs;
  options.num_classes = kClasses;
  options.hidden = hidden;
  return make_mlp(options);
}

std::unique_ptr<Task> gpt(int64_t context, int64_t width, int64_t layers) {
  GptOptions options;
  options.vocab_size = kVocabulary;
  options.n_layer = layers;
  options.n_head = 4;
  options.n_embd = width;
  options.context = context;
  options.dropout = 0;
  return make_gpt(options);
}

}  // namespace

std::vector<Case> cases() {
  return {
      {"MLP 64-64-10, batch 8", [] { return mlp(64, {64}); }, [] { return images({8, 64}); }, 20000},
      {"MLP 784-128-128-10, batch 64", [] { return mlp(784, {128, 128}); }, [] { return images({64, 784}); }, 4000},
      {"GPT d64 L2, 1x32", [] { return gpt(32, 64, 2); }, [] { return tokens(1, 32); }, 2000},
      {"GPT d64 L2, 8x32", [] { return gpt(32, 64, 2); }, [] { return tokens(8, 32); }, 1000},
      {"GPT d128 L4, 16x64", [] { return gpt(64, 128, 4); }, [] { return tokens(16, 64); }, 60},
      {"CNN 28x28, batch 64", [] { return make_small_cnn(); }, [] { return images({64, 1, 28, 28}); }, 200},
      {"LSTM h64, 8x32", [] { return make_lstm({.vocab_size = kVocabulary, .width = 64}); },
       [] { return tokens(8, 32); }, 1000},
      {"ViT d64 L2, 16x32x32", [] { return make_vit(64, 2); }, [] { return images({16, 3, 32, 32}); }, 60},
      {"BERT d128 L2, 8x64", [] { return make_bert(128, 2); }, [] { return tokens(8, 64, 1000); }, 60},
      {"ResNet-18, 16x32x32", [] { return make_resnet({.stem = "imagenet"}); }, [] { return images({16, 3, 32, 32}); },
       15},
      {"U-Net, 8x64x64", [] { return make_unet({.num_classes = 10, .in_channels = 1}); }, [] { return pixels(8, 64); },
       60},
      {"GPT d64 L2, 8x32, forward", [] { return gpt(32, 64, 2); }, [] { return tokens(8, 32); }, 2000, true},
      {"MLP 64-64-10, batch 1, forward", [] { return mlp(64, {64}); }, [] { return images({1, 64}); }, 20000, true},
  };
}

}  // namespace duet::benchmarks
