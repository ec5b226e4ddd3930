#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "tests/graph/kernels/kernel_cases.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// What a replay that has settled does besides arithmetic: it allocates no tensors and puts no arguments on a stack, but
// for ops that LibTorch has nothing else for.

namespace duet {
namespace {

using Names = std::set<std::string>;

// The ops that allocate in this thread while it lives, 4 KiB or more at once.
class AllocatingOps : public c10::MemoryReportingInfoBase {
 public:
  static Names of(const std::function<void()>& run) {
    const auto ops = std::make_shared<AllocatingOps>();
    running().clear();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, ops);
    const auto handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
    run();
    at::removeCallback(handle);
    return ops->names_;
  }

  void reportMemoryUsage(void*, int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    if (bytes >= 4096) names_.insert(running().empty() ? "no op" : running().front());
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  // The outermost first.
  static std::vector<std::string>& running() {
    static thread_local std::vector<std::string> names;
    return names;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    running().emplace_back(call.name());
    return nullptr;
  }
  static void end(const at::RecordFunction&, at::ObserverContext*) { running().pop_back(); }

  Names names_;
};

struct TinyVit : torch::nn::Module {
  static constexpr int64_t kWidth = 64, kHeads = 4;
  torch::nn::Conv2d patches =
      register_module("patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, kWidth, 4).stride(4)));
  at::Tensor cls = register_parameter("cls", torch::zeros({1, 1, kWidth}));
  at::Tensor positions = register_parameter("positions", torch::randn({1, 65, kWidth}));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, 5));

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = patches(images).flatten(2).transpose(1, 2);
    x = torch::cat({cls.expand({x.size(0), -1, -1}), x}, 1) + positions;
    std::vector<at::Tensor> parts = qkv(norm(x)).split(kWidth, 2);
    for (at::Tensor& part : parts) part = part.view({x.size(0), 65, kHeads, kWidth / kHeads}).transpose(1, 2);
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    x = x + mixed.transpose(1, 2).reshape(x.sizes());
    return head((x + down(torch::gelu(up(x)))).select(1, 0));
  }
};

testing::ToyTask vit_task() {
  return {"Vit",
          []() -> std::unique_ptr<Task> {
            return make_task(std::make_shared<TinyVit>(), [](TinyVit& net, const Batch& batch) {
              return torch::nn::functional::cross_entropy(net.forward(batch["input"]), batch["target"]);
            });
          },
          [](int64_t size, uint64_t) -> Batch {
            return {{"input", torch::randn({size, 3, 32, 32})}, {"target", torch::randint(5, {size}, torch::kInt64)}};
          }};
}

struct Model {
  testing::ToyTask task;
  int64_t size;  // of a batch: with tensors below and above what duet's own kernels take
  Names exceptions;
};

// LibTorch lets nobody say where these put their results.
const Names kConvolutions = {"aten::convolution", "aten::convolution_backward"};
const Names kLstm = {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"};
const Names kAttention = {"aten::_scaled_dot_product_flash_attention_for_cpu",
                          "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};

std::vector<Model> models() {
  std::vector<Model> all;
  for (const int64_t size : {4, 1024}) {
    all.push_back({testing::mlp_task(), size, {}});
    all.push_back({testing::attention_task(), size, kAttention});
    all.push_back({testing::lstm_task(), size, kLstm});
    all.push_back({testing::cnn_task(), size, kConvolutions});
  }
  Names vit = kConvolutions;
  vit.insert(kAttention.begin(), kAttention.end());  // where duet's own is refused
  all.push_back({vit_task(), 16, vit});
  return all;
}

Names boxed_ops(const std::string& program) {
  Names names;
  std::istringstream lines(program);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t name = line.find("aten::");
    if (line.ends_with(", boxed")) names.insert(line.substr(name, line.find_first_of(".(", name) - name));
  }
  return names;
}

TEST(SteadyReplay, AllocatesNoTensorsAndBoxesNoArguments) {
  if (!testing::has_kernels()) GTEST_SKIP() << "this CPU has no kernels of duet's own";
  const testing::Threads one(1);
  for (const Model& model : models()) {
    SCOPED_TRACE(model.task.name + " " + std::to_string(model.size));
    seed_all(1);
    GraphTrainer trainer(model.task.make(), {.optimizer = AdamW{.lr = 1e-3}, .device = "cpu"},
                         {.fuse_after = 0, .check = Check::kOff, .verify_interval = 0});
    const Batch batch = model.task.batch(model.size, 1);
    for (int step = 0; step < 4; ++step) trainer.step(batch);
    EXPECT_THAT(boxed_ops(trainer.program_text()), ::testing::IsSubsetOf(model.exceptions));
    const Names allocating = AllocatingOps::of([&] { trainer.step(batch); });
    EXPECT_THAT(allocating, ::testing::IsSubsetOf(model.exceptions));
    EXPECT_EQ(trainer.replays(), 3);
  }
}

}  // namespace
}  // namespace duet
