#include "benchmarks/ranks.h"
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/util/StringUtil.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/device.h"
#include "cli/zoo/classifiers.h"
#include "core/task.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"

namespace duet::benchmarks {

namespace {

bool write_all(int end, const Numbers& numbers) {
  const char* at = reinterpret_cast<const char*>(numbers.data());
  std::size_t left = numbers.size() * sizeof(double);
  while (left > 0) {
    const ssize_t written = write(end, at, left);
    if (written <= 0) return false;
    at += written;
    left -= static_cast<std::size_t>(written);
  }
  return true;
}

Numbers read_all(int end) {
  std::string bytes;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = read(end, part.data(), part.size())) > 0;)
    bytes.append(part.data(), static_cast<std::size_t>(got));
  Numbers numbers(bytes.size() / sizeof(double));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
  return numbers;
}

[[noreturn]] void run_rank(const Launch& launch, const Body& body, int end) {
  int code = 1;
  try {
    at::set_num_threads(1);
    if (write_all(end, body(launch))) code = 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %lld: %s\n", static_cast<long long>(launch.rank), error.what());
  }
  _exit(code);
}

}  // namespace

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
  static int port = 20000 + getpid() % 20000;
  ++port;
  std::vector<int> ends;
  for (int64_t rank = 0; rank < world; ++rank) {
    std::array<int, 2> pair{};
    if (pipe(pair.data()) != 0) throw std::runtime_error("no pipe");
    Launch launch;
    launch.rank = launch.local_rank = rank;
    launch.world_size = launch.local_world_size = world;
    launch.master_port = port;
    if (fork() == 0) run_rank(launch, body, pair[1]);
    close(pair[1]);
    ends.push_back(pair[0]);
  }
  std::vector<Numbers> numbers;
  for (const int end : ends) {
    numbers.push_back(read_all(end));
    close(end);
  }
  bool whole = true;
  for (int status = 0; wait(&status) > 0;) whole = whole && status == 0;
  if (!whole) throw std::runtime_error("a rank has failed");
  return numbers;
}

}  // namespace duet::benchmarks
