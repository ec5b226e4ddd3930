// What training on two processes of one machine costs and how much of it backward hides, in both modes and beside
// c10d::Reducer; then what a world of one costs beside a trainer that knows no ranks. One thread per process; rounds of
// all rows are interleaved; medians of rank 0's figures.
//
//   distributed_benchmark [--rounds N] [--steps N] [--width N] [--world-of-one]    # the last: that table alone
//
// "waits" is the time in which a step waits for sums that are not there yet; what the ranks need for the sums alone
// is the wait of one bucket that is started when backward has ended.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>
#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unistd.h>
#include "base/device.h"
#include "benchmarks/figures.h"
#include "benchmarks/flags.h"
#include "cli/zoo/classifiers.h"
#include "core/task.h"
#include "distributed/detail/connect.h"
#include "distributed/detail/gradient_reducer.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "tests/support/ranks.h"

namespace duet::benchmarks {

namespace {

using Clock = std::chrono::steady_clock;
using Numbers = std::vector<double>;

struct Size {
  int64_t steps = 10, width = 1536, layers = 3, batch = 128, warmup = 5;
};

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

// What `body` gives on rank 0 of so many processes, one thread each. Throws std::runtime_error if one fails.
Numbers on_ranks(int64_t world, const std::function<Numbers(const Launch& launch)>& body) {
  const auto ranks =
      testing::run_processes(world, [&](const Launch& launch) { return NamedTensors{{"", at::tensor(body(launch))}}; });
  for (const auto& rank : ranks) {
    if (!rank.error.empty()) throw std::runtime_error("a rank has failed: " + rank.error);
  }
  const at::Tensor& given = ranks.front().at("");
  return {given.const_data_ptr<double>(), given.const_data_ptr<double>() + given.numel()};
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Another one's collectives, with the time that finish() takes.
class TimedCommunicator : public Communicator {
 public:
  explicit TimedCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t world_size() const override { return inner_->world_size(); }
  bool is_single() const override { return inner_->is_single(); }
  using Communicator::broadcast;
  std::vector<std::string> all_gather(const std::string& bytes, bool of_one_size) override {
    return inner_->all_gather(bytes, of_one_size);
  }
  std::string broadcast(const std::string& bytes, int64_t root) override { return inner_->broadcast(bytes, root); }
  void report(int64_t step, const char* phase) override { inner_->report(step, phase); }
  void report(const char* phase) override { inner_->report(phase); }
  void set_running(bool running) override { inner_->set_running(running); }
  void use_start_timeout(bool patient) override { inner_->use_start_timeout(patient); }
  void announce_main_work() override { inner_->announce_main_work(); }
  void fail(const std::string& reason) override { inner_->fail(reason); }

  double waited = 0;  // milliseconds

 protected:
  void do_start_sum(const at::Tensor& values) override { inner_->start_sum(values); }
  void do_start_broadcast(const at::Tensor& values, int64_t root) override { inner_->start_broadcast(values, root); }
  void do_finish(const at::Tensor& values) override {
    const auto start = Clock::now();
    inner_->finish(values);
    waited += milliseconds_since(start);
  }

 private:
  std::shared_ptr<Communicator> inner_;
};

struct Figures {
  double step = 0, waits = 0, bytes = 0, theory = 0;  // per step; milliseconds

  Numbers numbers() const { return {step, waits, bytes, theory}; }
};

struct Case {
  std::string mode = "eager";
  int64_t bucket_bytes = int64_t{25} << 20, first_bucket_bytes = int64_t{1} << 20;

  DistributedOptions options(const std::shared_ptr<Communicator>& ranks) const {
    return {.communicator = ranks, .bucket_bytes = bucket_bytes, .first_bucket_bytes = first_bucket_bytes};
  }
};

Figures measure_trainer(const Case& c, const Size& size, const Launch& launch) {
  const auto ranks = std::make_shared<TimedCommunicator>(connect(launch, at::kCPU));
  const auto trainer = make_trainer(c.mode, size, c.options(ranks));
  const Batch batch = make_batch(size);
  for (int64_t i = 0; i < size.warmup; ++i) trainer->step(batch);
  Numbers steps, waits;
  const int64_t bytes_before = ranks->bytes_started();
  for (int64_t i = 0; i < size.steps; ++i) {
    const double waited = ranks->waited;
    const auto start = Clock::now();
    trainer->step(batch);
    steps.push_back(milliseconds_since(start));
    waits.push_back(ranks->waited - waited);
  }
  Figures figures{median(steps), median(waits)};
  if (!ranks->is_single()) {
    figures.bytes = static_cast<double>(ranks->bytes_started() - bytes_before) / static_cast<double>(size.steps);
    figures.theory = 8 + 8 * static_cast<double>(trainer->result().log.size());
    for (const auto& [name, tensor] : trainer->task().named_parameters())
      figures.theory += static_cast<double>(tensor.nbytes());
    for (const auto& [name, tensor] : trainer->task().named_buffers())
      figures.theory += static_cast<double>(tensor.nbytes());
    ranks->barrier();
  }
  return figures;
}

// Forward and backward by hand; `begin` comes between them and `end` after.
Figures measure_hand(const Size& size, Task& task, const std::function<void()>& begin, const std::function<void()>& end,
                     bool keep_gradients) {
  const Batch batch = make_batch(size);
  Numbers steps;
  for (int64_t i = 0; i < size.warmup + size.steps; ++i) {
    const auto start = Clock::now();
    for (const auto& [name, parameter] : task.named_parameters()) {
      if (!parameter.grad().defined()) continue;
      if (keep_gradients) {
        parameter.grad().zero_();
      } else {
        parameter.mutable_grad() = at::Tensor();
      }
    }
    const at::Tensor loss = task.training_step(batch).loss;
    begin();
    loss.backward();
    end();
    if (i >= size.warmup) steps.push_back(milliseconds_since(start));
  }
  return {median(steps)};
}

Figures measure_own_reducer(const Case& c, const Size& size, const Launch& launch) {
  const std::shared_ptr<Communicator> ranks = connect(launch, at::kCPU);
  const auto task = make_model(size);
  GradientReducer reducer(task->named_parameters(), ranks, c.options(ranks));
  const auto begin = [&] {
    reducer.prepare();
    reducer.begin();
    reducer.arm();
  };
  const Figures figures = measure_hand(size, *task, begin, [&] { reducer.finish(); }, false);
  ranks->barrier();
  return figures;
}

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const Launch& launch, const std::string& file) {
  const int rank = static_cast<int>(launch.rank), world = static_cast<int>(launch.world_size);
  const auto store = c10::make_intrusive<c10d::FileStore>(file, world);
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

Figures measure_c10d_reducer(const Case& c, bool as_views, const Size& size, const Launch& launch) {
  const std::string file =
      "/tmp/duet-benchmark-" + std::to_string(getppid()) + "-" + std::to_string(launch.master_port);
  const auto group = make_group(launch, file);
  const auto task = make_model(size);
  std::vector<at::Tensor> parameters;
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& [name, parameter] : task->named_parameters()) {
    names[parameters.size()] = name;
    parameters.push_back(parameter);
  }
  const std::vector<bool> sparse(parameters.size(), false);
  std::vector<std::size_t> limits = {static_cast<std::size_t>(c.first_bucket_bytes),
                                     static_cast<std::size_t>(c.bucket_bytes)};
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, sparse));
  std::reverse(buckets.begin(), buckets.end());
  c10d::Reducer reducer(parameters, buckets, group, sparse, c.bucket_bytes, /*find_unused_parameters=*/false, as_views,
                        names, c.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
                        /*use_python_reducer=*/false, {});
  bool rebuilt = false;
  const auto begin = [&] {
    if (!rebuilt) rebuilt = reducer.rebuild_buckets();
    reducer.prepare_for_backward({});
  };
  const Figures figures = measure_hand(size, *task, begin, [] {}, as_views);
  group->barrier()->wait();
  return figures;
}

struct Row {
  std::string name;
  int64_t world;
  std::function<Figures(const Launch& launch)> body;
  std::vector<Figures> rounds{};  // of rank 0
  Figures all{};
};

void measure(std::vector<Row>& rows, int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    for (Row& row : rows) {
      const Numbers first = on_ranks(row.world, [&](const Launch& launch) { return row.body(launch).numbers(); });
      row.rounds.push_back({first[0], first[1], first[2], first[3]});
    }
  }
  for (Row& row : rows) {
    Numbers steps, waits;
    for (const Figures& figures : row.rounds) {
      steps.push_back(figures.step);
      waits.push_back(figures.waits);
    }
    row.all = {median(steps), median(waits), row.rounds.front().bytes, row.rounds.front().theory};
  }
}

constexpr int64_t kMB = int64_t{1} << 20;

// The first row of several ranks has one bucket, which hides nothing.
std::vector<Row> trainer_rows(const std::string& mode, const Size& size) {
  const auto row = [&](const std::string& name, int64_t world, int64_t bucket, int64_t first) {
    return Row{mode + name, world,
               [=](const Launch& launch) { return measure_trainer({mode, bucket, first}, size, launch); }};
  };
  return {row(", 1 process", 1, kMB, kMB), row(", 2 ranks, one bucket", 2, int64_t{1} << 40, int64_t{1} << 40),
          row(", 2 ranks, buckets of 25 MB, first 1 MB", 2, 25 * kMB, kMB),
          row(", 2 ranks, buckets of 8 MB, first 1 MB", 2, 8 * kMB, kMB),
          row(", 2 ranks, buckets of 1 MB", 2, kMB, kMB)};
}

std::vector<Row> reducer_rows(int64_t bucket, const Size& size) {
  const Case c{"eager", bucket, kMB};
  const std::string buckets = ", buckets of " + std::to_string(bucket / kMB) + " MB";
  return {{"duet" + buckets, 2, [=](const Launch& launch) { return measure_own_reducer(c, size, launch); }},
          {"c10d::Reducer" + buckets, 2,
           [=](const Launch& launch) { return measure_c10d_reducer(c, false, size, launch); }},
          {"c10d::Reducer, gradients as views", 2,
           [=](const Launch& launch) { return measure_c10d_reducer(c, true, size, launch); }}};
}

// Both kinds of trainer take turns in one process: what they cost without other ranks, in CPU time.
void print_world_of_one(const char* mode, Size size, int64_t turns) {
  const auto body = [&](const Launch& launch) {
    const auto plain = make_trainer(mode, size, {});
    const auto launched = make_trainer(mode, size, Case{}.options(connect(launch, at::kCPU)));
    const Batch batch = make_batch(size);
    const auto cost = [&](BaseTrainer& trainer) {
      const double start = cpu_seconds();
      for (int64_t i = 0; i < size.steps; ++i) trainer.step(batch);
      return 1e6 * (cpu_seconds() - start) / static_cast<double>(size.steps);
    };
    cost(*plain);
    cost(*launched);
    Numbers without, with, ratios;
    for (int64_t i = 0; i < turns; ++i) {
      if (i % 2 == 0) without.push_back(cost(*plain));
      with.push_back(cost(*launched));
      if (i % 2 == 1) without.push_back(cost(*plain));
      ratios.push_back(with.back() / without.back());
    }
    return Numbers{median(without), median(with), median(ratios)};
  };
  const Numbers figures = on_ranks(1, body);
  const std::string name = mode + (", width " + std::to_string(size.width)) + ", batch " + std::to_string(size.batch);
  std::printf("%-44s %12.1f %12.1f %8.3f\n", name.c_str(), figures[0], figures[1], figures[2]);
}

void print_worlds_of_one(const Size& size, int64_t rounds) {
  std::printf("%-44s %12s %12s %8s\n", "microseconds of CPU per step", "no launch", "world of one", "ratio");
  Size small{.steps = 200, .width = 64, .batch = 16};
  Size large = size;
  large.steps = 2;
  for (const char* mode : {"eager", "graph"}) {
    print_world_of_one(mode, small, 10 * rounds);
    print_world_of_one(mode, large, 10 * rounds);
  }
}

int run(const Size& size, int64_t rounds) {
  std::printf("MLP, width %lld, %lld layers, batch %lld per rank; milliseconds per step\n",
              static_cast<long long>(size.width), static_cast<long long>(size.layers),
              static_cast<long long>(size.batch));
  std::printf("%-44s %10s %10s %10s\n", "trainer", "step", "waits", "hidden");
  Figures sent;
  for (const char* mode : {"eager", "graph"}) {
    std::vector<Row> rows = trainer_rows(mode, size);
    measure(rows, rounds);
    for (const Row& row : rows) {
      std::printf("%-44s %10.2f", row.name.c_str(), row.all.step);
      if (row.world > 1) std::printf(" %10.2f %8.0f %%", row.all.waits, 100 * (1 - row.all.waits / rows[1].all.waits));
      std::printf("\n");
    }
    sent = rows.back().all;
  }
  std::printf("bytes started per step: %.0f, expected %.0f\n", sent.bytes, sent.theory);
  std::printf("%-44s %10s\n", "forward and backward by hand, 2 ranks", "step");
  for (const int64_t bucket : {25 * kMB, 8 * kMB}) {
    std::vector<Row> rows = reducer_rows(bucket, size);
    measure(rows, rounds);
    for (const Row& row : rows) std::printf("%-44s %10.2f\n", row.name.c_str(), row.all.step);
  }
  print_worlds_of_one(size, rounds);
  return sent.bytes == sent.theory ? 0 : 1;
}

}  // namespace

}  // namespace duet::benchmarks

int main(int argc, char** argv) {
  const duet::benchmarks::Flags flags(argc, argv);
  duet::benchmarks::Size size;
  size.steps = flags.number("--steps", size.steps);
  size.width = flags.number("--width", size.width);
  const int64_t rounds = flags.number("--rounds", 5);
  if (flags.has("--world-of-one")) {
    duet::benchmarks::print_worlds_of_one(size, rounds);
    return 0;
  }
  return duet::benchmarks::run(size, rounds);
}
