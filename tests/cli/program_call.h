#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "cli/run_cli.h"
#include "io/safetensors.h"
#include "tests/support/idx_file.h"
#include "tests/support/temp_dir.h"

// The program without a process: a call with its words, in a folder with a small config and data.

namespace duet::testing {

struct Ran {
  int code = 0;
  std::string text{}, errors{};  // what it said on both streams, and on stderr
};

inline Ran run_program(std::vector<std::string> words) {
  words.insert(words.begin(), "duet");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Ran ran;
  ran.code = run_cli(static_cast<int>(words.size()), arguments.data());
  ran.errors = ::testing::internal::GetCapturedStderr();
  ran.text = ::testing::internal::GetCapturedStdout() + ran.errors;
  return ran;
}

inline constexpr const char* kBaseConfig = R"(model: {type: SmallCnn, channels: [4], dropout: 0.1}
data:
  train: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: 16}
  val: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: 32}
trainer: {max_steps: 4}
optim_wrapper: {optimizer: {type: AdamW, lr: 1.0e-3}, clip_grad: {max_norm: 1.0}}
param_scheduler: [{type: Linear, end: 2}]
default_hooks: {checkpoint: {interval: 2}}
evaluator: [{type: Accuracy}]
)";

// The working directory for as long as it lives: base.yaml, and data in files, some of them wrong.
class ProgramFolder {
 public:
  ProgramFolder() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder_.path());
    std::filesystem::create_directory("data");
    folder_.write("base.yaml", kBaseConfig);
    std::mt19937 random(0);
    std::string pixels(64 * 28 * 28, '\0'), labels(64, '\0');
    for (char& pixel : pixels) pixel = static_cast<char>(random() & 255);
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<char>(i % 10);
    folder_.write("data/images", idx_bytes(8, {64, 28, 28}, pixels));
    folder_.write("data/labels", idx_bytes(8, {64}, labels));
    folder_.write("data/few", idx_bytes(8, {3}, std::string("\0\1\2", 3)));
    labels[5] = 10;
    folder_.write("data/label_10", idx_bytes(8, {64}, labels));
    write_gz("data/cut.gz", idx_bytes(8, {64, 28, 28}, pixels));
    std::filesystem::resize_file("data/cut.gz", 9000);
    folder_.write("data/text", repeated("to be or not to be, that is the question. "));
    folder_.write("data/other_text", repeated("completely different characters: XYZ 0123456789 "));
    at::Tensor classes = at::arange(64).remainder(10);
    classes[30] = 12;
    write_safetensors("data/bad_label.safetensors", {{"image", at::zeros({64, 1, 28, 28})}, {"target", classes}});
  }
  ~ProgramFolder() { std::filesystem::current_path(before_); }
  ProgramFolder(const ProgramFolder&) = delete;
  ProgramFolder& operator=(const ProgramFolder&) = delete;

  const TempDir& files() const { return folder_; }

 private:
  static std::string repeated(const std::string& text) {
    std::string all;
    for (int i = 0; i < 20; ++i) all += text;
    return all;
  }

  TempDir folder_;
  std::filesystem::path before_;
};

}  // namespace duet::testing
