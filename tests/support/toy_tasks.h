#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "core/task.h"

namespace duet::testing {

// Small models that together use what real ones use. Each is deterministic given the default generator's seed at its
// making.
struct ToyTask {
  std::string name;
  std::function<std::unique_ptr<Task>()> make;
  // A batch of `size` samples, drawn from (seed).
  std::function<Batch(int64_t size, uint64_t seed)> batch;
};

ToyTask mlp_task();        // linear, gelu, dropout
ToyTask cnn_task();        // convolution, batch norm, pooling, dropout, linear
ToyTask attention_task();  // embedding, layer norm, causal attention, dropout, tied weights
ToyTask lstm_task();       // embedding, LSTM
ToyTask partial_task();    // a frozen and an unused parameter
const std::vector<ToyTask>& all_toy_tasks();

// Whether this LibTorch runs it under bfloat16 autocast: oneDNN has no LSTM for it on CPUs without AVX-512.
bool runs_in_bfloat16(const ToyTask& task);

}  // namespace duet::testing
