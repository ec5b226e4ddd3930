#pragma once

#include <cstdint>
#include <memory>
#include <duet/base/options.h>

namespace duet {
class Task;
}

struct LstmOptions {
  int64_t vocab_size = 0;  // must be set
  int64_t width = 128;     // of embedding and state
  int64_t num_layers = 1;
  double dropout = 0.0;  // of what layers give, in [0, 1)

  static const duet::OptionFields& fields();
};

// A language model: embedding, LSTM from a zero state for each sample, linear layer. Takes "input" and "target", int64
// [N, T]; the loss is a mean over tokens, "prediction" logits [N, T, vocab_size].
std::unique_ptr<duet::Task> make_lstm(const LstmOptions& options);
