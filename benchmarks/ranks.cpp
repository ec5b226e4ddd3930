#include "benchmarks/ranks.h"
#include <stdexcept>
#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>
#include "base/device.h"
#include "cli/zoo/classifiers.h"
#include "core/task.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "tests/support/ranks.h"

namespace duet::benchmarks {

std::string Size::text() const {
  return c10::str("MLP, width ", width, ", ", layers, " layers, batch ", batch, " per rank");
}

Size read_size(const Flags& flags) {
  Size size;
  size.steps = flags.number("--steps", size.steps);
  size.width = flags.number("--width", size.width);
  return size;
}

std::unique_ptr<Task> make_model(const Size& size) {
  MlpOptions options;
  options.in_features = size.width;
  options.num_classes = 10;
  options.hidden = std::vector<int64_t>(static_cast<std::size_t>(size.layers), size.width);
  return make_mlp(options);
}

Batch make_batch(const Size& size) {
  return {{"image", at::randn({size.batch, size.width})}, {"target", at::randint(10, {size.batch}, at::kLong)}};
}

std::unique_ptr<BaseTrainer> make_trainer(const std::string& mode, const Size& size,
                                          const DistributedOptions& distributed) {
  seed_all(1);
  TrainerOptions options;
  options.optimizer = SGD{.lr = 1e-3};
  options.device = "cpu";
  options.distributed = distributed;
  if (mode == "eager") return std::make_unique<EagerTrainer>(make_model(size), options);
  // A step that is compared would count twice.
  return std::make_unique<GraphTrainer>(make_model(size), options, GraphOptions{.fuse_after = 0, .verify_interval = 0});
}

std::vector<Numbers> on_ranks(int64_t world, const Body& body) {
  std::vector<Numbers> numbers;
  for (const auto& rank : testing::run_processes(
           world, [&](const Launch& launch) { return NamedTensors{{"", at::tensor(body(launch))}}; })) {
    if (!rank.error.empty()) throw std::runtime_error("a rank has failed: " + rank.error);
    const at::Tensor& given = rank.at("");
    numbers.emplace_back(given.const_data_ptr<double>(), given.const_data_ptr<double>() + given.numel());
  }
  return numbers;
}

}  // namespace duet::benchmarks
