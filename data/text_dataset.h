#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "../base/options.h"
#include "dataset.h"

namespace duet {

struct TextDatasetOptions {
  std::string path = "/usr/share/common-licenses/GPL-3";
  std::string split = "train";  // the file without its last val_fraction; "val": that part; "all"
  double val_fraction = 0.1;    // in [0, 1)
  int64_t context = 64;         // characters per sample
  int64_t stride = 0;           // characters between the starts of two samples; 0: context

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// Windows of a text file, one token per byte. Yields "input" int64 [N, context] and "target" int64 [N, context],
// which is the input one character later. Tokens number the distinct bytes of the whole file in their order, so that
// all splits share one vocabulary.
class TextDataset : public Dataset {
 public:
  // Throws ConfigError for bad options, DataError if the file cannot be read or the split is shorter than one sample.
  explicit TextDataset(TextDatasetOptions options = {});

  int64_t size() const override { return size_; }
  Batch get(const std::vector<int64_t>& indices) const override;

  int64_t vocab_size() const { return static_cast<int64_t>(vocabulary_.size()); }
  const std::string& vocabulary() const { return vocabulary_; }  // the byte of each token
  // Tokens of `text`; throws DataError naming the first byte that is not in the vocabulary.
  std::vector<int64_t> encode(std::string_view text) const;
  // Text of `tokens`; throws DataError naming the first that is not in [0, vocab_size()).
  std::string decode(const std::vector<int64_t>& tokens) const;

 private:
  TextDatasetOptions options_;
  std::string vocabulary_;
  std::array<int16_t, 256> token_of_{};  // the token of each byte, -1 for none
  std::vector<uint8_t> tokens_;          // of the split; a byte is enough for at most 256 tokens
  int64_t size_ = 0;
};

}  // namespace duet
