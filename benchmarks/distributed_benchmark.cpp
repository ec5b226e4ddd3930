// What training on two processes of one machine costs and how much of it backward hides, in both modes and beside
// c10d::Reducer. One thread per process; rounds of all rows are interleaved; medians of rank 0's
// figures.
//
//   distributed_benchmark [--rounds N] [--updates N] [--width N]
//
// "waits" is the time in which an update waits for sums that are not there yet; what the ranks need for the sums alone
// is the wait of one bucket that is started when backward has ended.

#include <duet/cli/models/mlp.h>
#include <duet/core/comm/connect.h>
#include <duet/core/random.h>
#include <duet/eager/eager_trainer.h>
#include <duet/graph/graph_trainer.h>
#include <duet/optim/gradient_reducer.h>

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace duet::benchmarks {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Another one's collectives, with the time that finish() takes.
class TimedCommunicator : public Communicator {
 public:
  explicit TimedCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t world_size() const override { return inner_->world_size(); }
  using Communicator::broadcast;
  std::vector<std::vector<double>> all_gather(const std::vector<double>& numbers) override {
    return inner_->all_gather(numbers);
  }
  std::vector<std::string> all_gather(const std::string& bytes) override { return inner_->all_gather(bytes); }
  std::string broadcast(const std::string& bytes, int64_t root) override { return inner_->broadcast(bytes, root); }
  void report(int64_t update, const char* phase) override { inner_->report(update, phase); }
  void set_running() override { inner_->set_running(); }
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

struct Size {
  int64_t updates = 10, width = 1536, layers = 3, batch = 128, warmup = 5;
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

struct Figures {
  double update = 0, waits = 0, bytes = 0, theory = 0;  // per update; milliseconds
};

using Body = std::function<Figures(const Launch& launch)>;

// Rank 0's figures.
Figures on_ranks(int64_t world, const Body& body) {
  static int port = 20000 + getpid() % 20000;
  ++port;
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  for (int64_t rank = 0; rank < world; ++rank) {
    if (fork() != 0) continue;
    at::set_num_threads(1);
    Launch launch;
    launch.rank = launch.local_rank = rank;
    launch.world_size = launch.local_world_size = world;
    launch.master_port = port;
    int code = 0;
    try {
      const Figures figures = body(launch);
      if (rank == 0 && write(ends[1], &figures, sizeof(figures)) != sizeof(figures)) code = 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %lld: %s\n", static_cast<long long>(rank), error.what());
      code = 1;
    }
    _exit(code);
  }
  close(ends[1]);
  Figures figures;
  const bool whole = read(ends[0], &figures, sizeof(figures)) == sizeof(figures);
  close(ends[0]);
  while (wait(nullptr) > 0) {
  }
  if (!whole) throw std::runtime_error("a rank has failed");
  return figures;
}

struct Case {
  std::string mode = "eager";
  int64_t bucket_bytes = int64_t{25} << 20, first_bucket_bytes = int64_t{1} << 20;
};

std::unique_ptr<BaseTrainer> make_trainer(const Case& c, const Size& size, const std::shared_ptr<Communicator>& ranks) {
  seed_all(1);
  TrainerOptions options;
  options.optimizer = {.type = "SGD", .lr = 1e-3};
  options.device = "cpu";
  options.distributed = {
      .communicator = ranks, .bucket_bytes = c.bucket_bytes, .first_bucket_bytes = c.first_bucket_bytes};
  if (c.mode == "eager") return std::make_unique<EagerTrainer>(make_model(size), options);
  return std::make_unique<GraphTrainer>(make_model(size), options, GraphOptions{.verify_interval = 1000000});
}

Figures measure_trainer(const Case& c, const Size& size, const Launch& launch) {
  const std::shared_ptr<Communicator> inner = connect(launch, at::kCPU);
  const auto ranks = inner ? std::make_shared<TimedCommunicator>(inner) : nullptr;
  const auto trainer = make_trainer(c, size, ranks);
  const Batch batch = make_batch(size);
  for (int64_t i = 0; i < size.warmup; ++i) trainer->step(batch);
  std::vector<double> updates, waits;
  const int64_t bytes_before = ranks ? ranks->bytes_started() : 0;
  for (int64_t i = 0; i < size.updates; ++i) {
    const double waited = ranks ? ranks->waited : 0;
    const auto start = Clock::now();
    trainer->step(batch);
    updates.push_back(milliseconds_since(start));
    waits.push_back(ranks ? ranks->waited - waited : 0);
  }
  Figures figures{median(updates), median(waits)};
  if (ranks) {
    figures.bytes = static_cast<double>(ranks->bytes_started() - bytes_before) / static_cast<double>(size.updates);
    figures.theory = 8 + 8 * static_cast<double>(trainer->output().log.size());
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
  std::vector<double> updates;
  for (int64_t i = 0; i < size.warmup + size.updates; ++i) {
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
    if (i >= size.warmup) updates.push_back(milliseconds_since(start));
  }
  return {median(updates)};
}

Figures measure_own_reducer(const Case& c, const Size& size, const Launch& launch) {
  const std::shared_ptr<Communicator> ranks = connect(launch, at::kCPU);
  const auto task = make_model(size);
  GradientReducer reducer(
      task->named_parameters(), ranks,
      {.communicator = ranks, .bucket_bytes = c.bucket_bytes, .first_bucket_bytes = c.first_bucket_bytes});
  const auto begin = [&] {
    reducer.begin();
    reducer.arm();
  };
  const Figures figures = measure_hand(
      size, *task, begin, [&] { reducer.finish(); }, false);
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
  const Figures figures = measure_hand(
      size, *task, begin, [] {}, as_views);
  group->barrier()->wait();
  return figures;
}

struct Row {
  std::string name;
  int64_t world;
  Body body;
  std::vector<Figures> rounds{};
  Figures all{};
};

void measure(std::vector<Row>& rows, int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    for (Row& row : rows) row.rounds.push_back(on_ranks(row.world, row.body));
  }
  for (Row& row : rows) {
    std::vector<double> updates, waits;
    for (const Figures& figures : row.rounds) {
      updates.push_back(figures.update);
      waits.push_back(figures.waits);
    }
    row.all = {median(updates), median(waits), row.rounds.front().bytes, row.rounds.front().theory};
  }
}

constexpr int64_t kMB = int64_t{1} << 20;

// The first row of several ranks has one bucket, which hides nothing.
std::vector<Row> trainer_rows(const std::string& mode, const Size& size) {
  const auto row = [&](const std::string& name, int64_t world, int64_t bucket, int64_t first) {
    return Row{mode + name, world, [=](const Launch& launch) {
                 return measure_trainer({mode, bucket, first}, size, launch);
               }};
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

int run(const Size& size, int64_t rounds) {
  std::printf("MLP, width %lld, %lld layers, batch %lld per rank; milliseconds per update\n",
              static_cast<long long>(size.width), static_cast<long long>(size.layers),
              static_cast<long long>(size.batch));
  std::printf("%-44s %10s %10s %10s\n", "trainer", "update", "waits", "hidden");
  Figures sent;
  for (const char* mode : {"eager", "graph"}) {
    std::vector<Row> rows = trainer_rows(mode, size);
    measure(rows, rounds);
    for (const Row& row : rows) {
      std::printf("%-44s %10.2f", row.name.c_str(), row.all.update);
      if (row.world > 1) std::printf(" %10.2f %8.0f %%", row.all.waits, 100 * (1 - row.all.waits / rows[1].all.waits));
      std::printf("\n");
    }
    sent = rows.back().all;
  }
  std::printf("bytes started per update: %.0f, expected %.0f\n", sent.bytes, sent.theory);
  std::printf("%-44s %10s\n", "forward and backward by hand, 2 ranks", "update");
  for (const int64_t bucket : {25 * kMB, 8 * kMB}) {
    std::vector<Row> rows = reducer_rows(bucket, size);
    measure(rows, rounds);
    for (const Row& row : rows) std::printf("%-44s %10.2f\n", row.name.c_str(), row.all.update);
  }
  return sent.bytes == sent.theory ? 0 : 1;
}

}  // namespace

}  // namespace duet::benchmarks

int main(int argc, char** argv) {
  duet::benchmarks::Size size;
  int64_t rounds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--updates") == 0) size.updates = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--width") == 0) size.width = std::max(1, std::atoi(argv[i + 1]));
  }
  return duet::benchmarks::run(size, rounds);
}
