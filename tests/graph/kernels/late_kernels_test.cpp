#include <stdexcept>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "graph/graph_trainer.h"
#include "graph/kernels/cpu_kernels.h"
#include "tests/graph/kernels/trainer_with_kernels.h"
#include "tests/support/log_lines.h"

// Kernels that have to be tried come once a capture has been replayed so often that the trials may pay.

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::same_bits;
using testing::TrainerWithKernels;

// Widths that no other test has, since what was tried in the process is known.
struct Wide : torch::nn::Module {
  explicit Wide(int64_t width) : up{16, width}, norm{torch::nn::LayerNormOptions({width})}, down{width, 5} {
    register_module("up", up), register_module("norm", norm), register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(norm(torch::gelu(up(x), "tanh"))); }
  torch::nn::Linear up;
  torch::nn::LayerNorm norm;
  torch::nn::Linear down;
};

std::unique_ptr<Task> wide(int64_t width) {
  seed_all(4);
  return make_task(std::make_shared<Wide>(width), [](Wide& net, const Batch& batch) {
    return torch::nn::functional::cross_entropy(net.forward(batch["input"]), batch["target"]);
  });
}

constexpr const char* kOwn = "bit-exact layer norm";

bool has_own_kernels() { return cpu_kernels().rows.layer_norm_forward != nullptr; }

TEST(LateKernels, ComeAfterSomeReplaysWithTheSameBits) {
  if (!has_own_kernels()) GTEST_SKIP() << "this CPU has no kernel of duet's";
  const auto eager = testing::make_trainer("eager", wide(52)), graph = testing::make_trainer("graph", wide(52));
  const auto& captured = dynamic_cast<GraphTrainer&>(*graph);
  for (int64_t n = 0; n < 80; ++n) {
    EXPECT_TRUE(same_bits(eager->step(batch_at(n)).loss, graph->step(batch_at(n)).loss)) << "step " << n;
    if (captured.replays() == 0) continue;
    const bool late = captured.replays() > GraphOptions().fuse_after;
    EXPECT_EQ(captured.program_text().find(kOwn) != std::string::npos, late) << captured.replays();
  }
  EXPECT_GT(captured.replays(), GraphOptions().fuse_after);
  expect_same_bits(eager->state_dict(), graph->state_dict());
}

TEST(LateKernels, ComeAtOnceWhereTheyWereTriedBeforeOrWaitForNothing) {
  if (!has_own_kernels()) GTEST_SKIP() << "this CPU has no kernel of duet's";
  const auto first = testing::make_trainer("graph", wide(56), {}, {.fuse_after = 0});
  const auto other = testing::make_trainer("graph", wide(56), {}, {.fuse_after = 1 << 30});
  const auto never = testing::make_trainer("graph", wide(60), {}, {.fuse_after = 1 << 30});
  for (const auto* trainer : {&first, &other, &never}) {
    for (int64_t n = 0; n < 3; ++n) (*trainer)->step(batch_at(n));
    const std::string program = dynamic_cast<GraphTrainer&>(**trainer).program_text();
    EXPECT_EQ(program.find(kOwn) != std::string::npos, trainer != &never) << program;
  }
}

// Products that have to be tried, and are wrong.
void find_wrong_products(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  kernels.untried = !kernels.may_try;
  for (std::size_t i = 0; kernels.may_try && i < calls.size(); ++i) {
    if (!calls[i].is("aten::mm", "out")) continue;
    kernels.of_call[i] = {[out = calls[i].floats(2)] { out.fill_(1); }, "wrong product"};
  }
}

int failures = 0;  // to come

void fail_to_find(const std::vector<OpCall>& /*calls*/, BitexactKernels& kernels) {
  kernels.untried = !kernels.may_try;
  if (kernels.may_try && failures-- > 0) throw std::runtime_error("planted");
}

// However long it is until the next comparison.
TEST(LateKernels, AreComparedAtTheFirstReplayWithThem) {
  const auto eager = TrainerWithKernels::eager();
  TrainerWithKernels graph(find_wrong_products, {.fuse_after = 20, .check = Check::kOff, .verify_interval = 1 << 20});
  for (int64_t n = 0; n < 40; ++n) {
    EXPECT_TRUE(same_bits(eager->step(batch_at(n)).loss, graph.step(batch_at(n)).loss)) << "step " << n;
  }
  EXPECT_THAT(graph.report().reason, HasSubstr("wrong product in aten::mm.out"));
  EXPECT_EQ(graph.report().state, "captured");
  expect_same_bits(eager->state_dict(), graph.state_dict());
}

// Where memory runs out, say.
TEST(LateKernels, ThatCannotBeTriedEndNoRun) {
  failures = 1;
  const auto eager = TrainerWithKernels::eager();
  TrainerWithKernels graph(fail_to_find, {.fuse_after = 5});
  const std::string said = testing::stderr_of([&] {
    for (int64_t n = 0; n < 30; ++n)
      EXPECT_TRUE(same_bits(eager->step(batch_at(n)).loss, graph.step(batch_at(n)).loss)) << "step " << n;
  });
  EXPECT_THAT(said, HasSubstr("its kernels could not be tried (planted); it is captured again"));
  EXPECT_EQ(failures, -1);
  EXPECT_EQ(graph.report().state, "captured");
  expect_same_bits(eager->state_dict(), graph.state_dict());
}

TEST(LateKernels, WaitWhileComparisonsDo) {
  const auto eager = TrainerWithKernels::eager();
  TrainerWithKernels graph(find_wrong_products, {.fuse_after = 10, .check = Check::kOff, .verify_interval = 1 << 20});
  bool waits = true;
  graph.on(HookPoint::kBeforeTrainIter, [&](TrainContext& run) { run.control.postpones_checks = waits; });
  for (int64_t n = 0; n < 40; ++n) {
    waits = n < 30;
    EXPECT_TRUE(same_bits(eager->step(batch_at(n)).loss, graph.step(batch_at(n)).loss)) << "step " << n;
    if (waits) EXPECT_EQ(graph.report().reason, "") << n;
  }
  EXPECT_THAT(graph.report().reason, HasSubstr("wrong product"));
}

// Two signatures, whose captures take turns in one memory, with kernels that come in between.
TEST(LateKernels, AFailedReplayLeavesNothingToTheNext) {
  const auto loss = [](Wide& net, const Batch& batch) {
    const at::Tensor x = net.forward(batch["input"]);
    return torch::nn::functional::cross_entropy(x.gather(1, batch["label"]) + x, batch["target"]);
  };
  for (const int64_t fuse_after : {0, 3}) {
    const auto made = [&](Mode mode) {
      seed_all(4);
      auto step = std::make_unique<GraphStep>(
          make_task(std::make_shared<Wide>(68), loss), TrainerOptions{.device = "cpu"},
          GraphOptions{.fuse_after = fuse_after, .check = Check::kOff, .verify_interval = 0});
      step->set_mode(mode);
      return step;
    };
    const auto eager = made(Mode::kEager), graph = made(Mode::kGraph);
    std::vector<at::Tensor> kept, copies;
    for (int64_t n = 0; n < 30; ++n) {
      Batch batch = batch_at(n, n % 2 == 0 ? 8 : 6);
      const bool fails = n > 8 && n % 5 == 0;
      batch.set("label", torch::full({n % 2 == 0 ? 8 : 6, 1}, fails ? 99 : n % 5, torch::kLong));
      for (GraphStep* step : {eager.get(), graph.get()}) {
        const auto run = [&] { (*step)(batch); };
        if (fails)
          EXPECT_ANY_THROW(run());
        else
          run();
      }
      if (!fails) EXPECT_TRUE(same_bits(eager->result().loss, graph->result().loss)) << n;
      const NamedTensors expected = eager->task().named_parameters(), given = graph->task().named_parameters();
      for (std::size_t i = 0; i < given.size(); ++i) {
        const at::Tensor grad = given[i].second.grad();
        EXPECT_TRUE(same_bits(expected[i].second, given[i].second)) << n << given[i].first;
        EXPECT_EQ(grad.defined(), !fails) << n << given[i].first;
        if (grad.defined()) EXPECT_TRUE(same_bits(expected[i].second.grad(), grad)) << n << given[i].first;
        if (grad.defined() && n % 3 == 0) kept.push_back(grad), copies.push_back(grad.clone());
      }
      for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(same_bits(kept[i], copies[i])) << n;
    }
    EXPECT_GT(graph->replays(), 15);
  }
}

}  // namespace
}  // namespace duet
