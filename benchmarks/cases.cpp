#include "benchmarks/cases.h"
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include "cli/zoo/classifiers.h"
#include "cli/zoo/gpt.h"

namespace duet::benchmarks {

namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kVocabulary = 65;

Batch images(const std::vector<int64_t>& shape) {
  return {{"image", at::randn(shape)}, {"target", at::randint(kClasses, {shape[0]}, at::kLong)}};
}

Batch characters(int64_t samples, int64_t length) {
  return {{"input", at::randint(kVocabulary, {samples, length}, at::kLong)},
          {"target", at::randint(kVocabulary, {samples, length}, at::kLong)}};
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
      {"GPT d64 L2, 1x32", [] { return gpt(32, 64, 2); }, [] { return characters(1, 32); }, 2000},
      {"GPT d64 L2, 8x32", [] { return gpt(32, 64, 2); }, [] { return characters(8, 32); }, 1000},
      {"GPT d128 L4, 16x64", [] { return gpt(64, 128, 4); }, [] { return characters(16, 64); }, 60},
      {"CNN 28x28, batch 64", [] { return make_small_cnn(); }, [] { return images({64, 1, 28, 28}); }, 200},
  };
}

}  // namespace duet::benchmarks
