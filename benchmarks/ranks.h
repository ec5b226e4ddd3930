#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/batch.h"
#include "benchmarks/flags.h"
#include "distributed/communicator.h"

namespace duet {

class BaseTrainer;
class Task;

}  // namespace duet

namespace duet::benchmarks {

struct Size {
  int64_t steps = 10, width = 1536, layers = 3, batch = 128, warmup = 5;

  // "MLP, width 1536, 3 layers, batch 128 per rank"
  std::string text() const;
};

// What --steps and --width say.
Size read_size(const Flags& flags);

std::unique_ptr<Task> make_model(const Size& size);
Batch make_batch(const Size& size);
std::unique_ptr<BaseTrainer> make_trainer(const std::string& mode, const Size& size,
                                          const DistributedOptions& distributed);

using Numbers = std::vector<double>;
using Body = std::function<Numbers(const Launch& launch)>;

// Runs `body` in a process per rank, one thread each, and returns what each of them gave, by rank. Throws
// std::runtime_error if one fails.
std::vector<Numbers> on_ranks(int64_t world, const Body& body);

}  // namespace duet::benchmarks
