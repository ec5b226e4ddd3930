#pragma once

#include <cstdint>
#include <memory>
#include "../../base/options.h"

namespace duet {

class Task;

struct GptOptions {
  int64_t vocab_size = 0;  // in a config, 0 asks the training data; make_gpt needs the number
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 128;  // a multiple of n_head
  int64_t context = 64;  // longest sequence
  double dropout = 0.1;  // after the embeddings, in attention, after each residual branch; in [0, 1)

  static const OptionFields& fields();
};

// A GPT-2: learned positions, pre-norm blocks of causal attention and a GELU MLP, the token embedding as output layer,
// GPT-2's initial weights. Takes "input" and "target", int64 [N, T] with T <= context; the loss is a mean over tokens.
std::unique_ptr<Task> make_gpt(const GptOptions& options);

}  // namespace duet
