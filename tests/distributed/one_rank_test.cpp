#include <algorithm>
#include <csignal>
#include <limits>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/hook.h"
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// What one rank does in its model, settings or steps and the others do not: an error of all of them, in words, or
// nothing where it makes no difference.

namespace duet {
namespace {

using namespace testing;

struct Model : torch::nn::Module {
  at::Tensor a, b, cache;
  explicit Model(int64_t size = 2, bool with_b = true) {
    a = register_parameter("weight", torch::ones({size, 1}));
    if (with_b) b = register_parameter("bias", torch::ones({size, 1}));
    cache = register_buffer("cache", torch::zeros({2}));
  }
};

// Six steps of a rank, which a test changes. The gradients of a and b are the means of x.
struct Steps {
  std::string mode;
  std::shared_ptr<Model> model = std::make_shared<Model>();
  TrainerOptions options{};
  std::function<StepOutput(Model&, const at::Tensor& mean, int64_t step)> loss = [](Model& net, const at::Tensor& mean,
                                                                                    int64_t) {
    net.cache.add_(1);
    return StepOutput{(mean * net.a + mean * net.b).sum() + 0 * net.cache.sum(), {}};
  };
  std::function<double(int64_t step)> value = [](int64_t) { return 2.0; };
  double weight = 1;  // of a micro-batch
  // After a step; after step -1: before the first one.
  std::function<void(Model&, BaseTrainer&, int64_t step)> act = [](Model&, BaseTrainer&, int64_t) {};
};

NamedTensors take(Steps& steps, const Ranks& ranks) {
  int64_t step = 0;
  steps.options.distributed.communicator = ranks;
  const auto task = [&](Model& net, const Batch& batch) { return steps.loss(net, batch["x"].mean(), step); };
  const auto weigh = [&](const Batch&) { return steps.weight; };
  const auto trainer = make_trainer(steps.mode, make_task(steps.model, task, weigh), steps.options);
  steps.act(*steps.model, *trainer, -1);
  for (; step < 6; ++step) {
    trainer->step(Batch{{"x", torch::full({1}, steps.value(step), torch::kFloat)}});
    steps.act(*steps.model, *trainer, step);
  }
  trainer->finish();
  return weights_of(*trainer);
}

using Change = std::function<void(Steps& steps, int64_t rank)>;

std::vector<RankResult> run(const std::string& mode, const Change& change) {
  return run_ranks(2, [&](const Ranks& ranks) {
    Steps steps{.mode = mode};
    change(steps, ranks->rank());
    return take(steps, ranks);
  });
}

// A change of rank 1 alone.
Change of_rank_1(const std::function<void(Steps&)>& change) {
  return [change](Steps& steps, int64_t rank) {
    if (rank == 1) change(steps);
  };
}

Change after_step(int64_t when, const std::function<void(Model&, BaseTrainer&)>& act, int64_t of_rank = 1) {
  return [=](Steps& steps, int64_t rank) {
    steps.act = [=](Model& model, BaseTrainer& trainer, int64_t step) {
      if (step == when && rank == of_rank) act(model, trainer);
    };
  };
}

Change logs_another_name(int64_t from) {
  return [from](Steps& steps, int64_t rank) {
    steps.loss = [=](Model& net, const at::Tensor& mean, int64_t step) {
      const at::Tensor loss = (mean * net.a + mean * net.b).sum();
      return StepOutput{loss, {{rank == 1 && step >= from ? "mistake" : "error", loss.detach()}}};
    };
  };
}

Change leaves_out_b(int64_t from) {
  return [from](Steps& steps, int64_t rank) {
    steps.loss = [=](Model& net, const at::Tensor& mean, int64_t step) {
      return StepOutput{(rank == 0 || step < from ? mean * net.a + mean * net.b : mean * net.a).sum(), {}};
    };
  };
}

// The last parameter in a group of its own on rank 1, else the first one.
ParamGroups one_alone(bool last, const Task& task) {
  NamedTensors rest = task.named_parameters();
  const auto one = last ? rest.end() - 1 : rest.begin();
  ParamGroups groups = {{"one", {*one}, {{"lr", 0.5}}}};
  rest.erase(one);
  groups.push_back({"rest", rest, {}});
  return groups;
}

at::Tensor sparse_loss(Model& net) {
  return at::embedding(net.a, torch::tensor({0, 1}), -1, false, /*sparse=*/true).sum() + net.b.sum();
}

struct Difference {
  std::string text;  // that all ranks say
  Change change;
  int exit_code = 2;
  bool in_graph_mode = true;
};

const std::string kSettings = "rank 1 trains with other settings than rank 0 (",
                  kBuffers = "rank 1 has other buffers than rank 0 (",
                  kTrains = "rank 1 trains other parameters than rank 0 (";

std::vector<Difference> of_settings() {
  const auto drop = [](std::size_t, int64_t applied) { return applied < 5 ? 0.001 : 0.0001; };
  return {
      {kSettings + "lr of group 0: 0.25; on rank 0 lr of group 0: 0.001",
       of_rank_1([](Steps& s) { s.options.optimizer = AdamW{.lr = 0.25}; })},
      {kSettings + "optimizer: SGD; on rank 0 optimizer: AdamW",
       of_rank_1([](Steps& s) { s.options.optimizer = SGD{}; })},
      {kSettings + "clip_grad: on; on rank 0 clip_grad: off",
       of_rank_1([](Steps& s) { s.options.clip_grad = ClipNorm{}; })},
      {kSettings + "schedules: 1; on rank 0 schedules: 0",
       of_rank_1([](Steps& s) { s.options.schedules = {Linear{.end = 9}}; })},
      {kSettings + "bucket_bytes: 1; on rank 0 bucket_bytes: 26214400",
       of_rank_1([](Steps& s) { s.options.distributed.bucket_bytes = 1; })},
      {"(group of bias: 0; on rank 0 group of bias: 1)",
       [](Steps& s, int64_t rank) {
         s.options.param_groups = [rank](const Task& task, const auto&) { return one_alone(rank == 1, task); };
       }},
      {"(lr of group 0: 0.25; on rank 0 lr of group 0: 0.001)",
       after_step(3, [](Model&, BaseTrainer& trainer) { trainer.hyper_parameters().set(0, "lr", 0.25); })},
      // Whose first value is the number's own.
      {"(lr follows a curve: yes; on rank 0 nothing)",
       after_step(-1, [drop](Model&, BaseTrainer& t) { t.hyper_parameters().set_schedule("lr", drop); })},
  };
}

std::vector<Difference> of_models() {
  const auto grow = [](Model& net, BaseTrainer&) { net.cache.set_data(torch::zeros({64})); };
  const auto shrink = [](Model& net, BaseTrainer&) { net.cache.resize_({1}).zero_(); };  // the same memory
  const auto freeze = [](Model& net, BaseTrainer&) { net.b.requires_grad_(false); };
  return {
      {"rank 1 has another model than rank 0", of_rank_1([](Steps& s) { s.model = std::make_shared<Model>(3); })},
      {"[3, 1]", of_rank_1([](Steps& s) { s.model = std::make_shared<Model>(3); })},
      {"cache Float [2] of 1 values",
       of_rank_1([](Steps& s) { s.model->cache.set_data(torch::zeros({1}).expand({2})); })},
      {"bias", of_rank_1([](Steps& s) { s.model->b.requires_grad_(false); })},
      {"bias", of_rank_1([](Steps& s) { s.model = std::make_shared<Model>(2, false); })},
      {kBuffers + "cache: Float [2]; on rank 0 cache: Float [64])", after_step(2, grow, 0)},
      {kBuffers + "cache: Float [64]; on rank 0 cache: Float [2])", after_step(2, grow)},
      {kBuffers + "cache: Float [1]; on rank 0 cache: Float [2])", after_step(2, shrink)},
      {kTrains + "bias: frozen; on rank 0 bias: trains, strides [1, 1])", after_step(2, freeze)},
      {kTrains + "wide: trains, strides [1, 2]; on rank 0 wide: trains, strides [3, 1])",
       [](Steps& s, int64_t rank) {
         const at::Tensor wide = torch::ones({3, 2}).t();
         s.model->register_parameter("wide", rank == 1 ? wide : wide.contiguous());
       }},
  };
}

std::vector<Difference> of_steps() {
  return {
      {"training_step logs other values on rank 1", logs_another_name(0)},
      {"logs other names than in the first step", logs_another_name(3), 2, /*in_graph_mode=*/false},
      {"'bias'", leaves_out_b(0)},
      {"'bias' got no gradient in this step on rank 1", leaves_out_b(2), 2, /*in_graph_mode=*/false},
      {"expected a dense one",
       [](Steps& s, int64_t) {
         s.loss = [](Model& net, const at::Tensor&, int64_t) { return StepOutput{sparse_loss(net), {}}; };
       }},
      {"all micro-batches of step 0 have weight 0", [](Steps& s, int64_t) { s.weight = 0; }, 3},
      {"",
       [](Steps& s, int64_t rank) {
         s.options.non_finite = NonFinite::kRaise;
         s.value = [rank](int64_t step) {
           return rank == 1 && step == 3 ? std::numeric_limits<double>::infinity() : 2.0;
         };
       },
       5},
  };
}

class OneRank : public InBothModes {
 protected:
  // Where a rank was told before it found out by itself, it has PeerError, with the same words.
  static void expect_all(const std::vector<Difference>& differences) {
    for (const Difference& difference : differences) {
      if (GetParam() == "graph" && !difference.in_graph_mode) continue;
      SCOPED_TRACE(difference.text);
      bool own = false;
      for (const RankResult& result : run(GetParam(), difference.change)) {
        own = own || result.exit_code == difference.exit_code;
        expect_rank_error(result, result.exit_code == 6 ? 6 : difference.exit_code, difference.text);
      }
      EXPECT_TRUE(own);
    }
  }
};

TEST_P(OneRank, HasOtherSettings) { expect_all(of_settings()); }
TEST_P(OneRank, HasAnotherModel) { expect_all(of_models()); }
TEST_P(OneRank, TakesOtherSteps) { expect_all(of_steps()); }

TEST_P(OneRank, MayDifferWhereItMakesNoDifference) {
  const auto set = [](BaseTrainer& trainer, const char* name, double value) {
    trainer.hyper_parameters().set(0, name, value);
  };
  const std::vector<std::pair<const char*, Change>> changes = {
      {"values that rank 0 has others of", of_rank_1([](Steps& s) { s.model->a.data().fill_(7); })},
      {"strides of a dimension of one element",
       of_rank_1([](Steps& s) { s.model->a.set_data(torch::ones({2, 1}).as_strided({2, 1}, {1, 2})); })},
      {"the order of a group's parameters",
       [](Steps& s, int64_t rank) {
         s.options.param_groups = [rank](const Task& task, const auto&) {
           NamedTensors parameters = task.named_parameters();
           if (rank == 1) std::reverse(parameters.begin(), parameters.end());
           return ParamGroups{{"all", parameters, {}}};
         };
       }},
      {"the order in which numbers are set",
       [set](Steps& s, int64_t rank) {
         s.act = [=](Model&, BaseTrainer& trainer, int64_t step) {
           if (step != 3) return;
           if (rank == 0) set(trainer, "weight_decay", 0.5);
           set(trainer, "lr", 0.25);
           if (rank == 1) set(trainer, "weight_decay", 0.5);
         };
       }},
      {"a buffer's shape between steps", [](Steps& s, int64_t rank) {
         s.loss = [](Model& net, const at::Tensor& mean, int64_t) {
           if (net.cache.numel() != 2) net.cache.set_data(torch::zeros({2}));
           net.cache.add_(1);
           return StepOutput{(mean * net.a + mean * net.b).sum(), {}};
         };
         s.act = [rank](Model& net, BaseTrainer&, int64_t step) {
           if (step == 2 && rank == 1) net.cache.set_data(torch::zeros({5}));
         };
       }}};
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    expect_same_on_all(run(mode(), change));
  }
}

TEST_P(OneRank, MayLeaveAParameterOutOnRequest) {
  const auto results = run(mode(), [](Steps& steps, int64_t rank) {
    leaves_out_b(0)(steps, rank);
    steps.options.optimizer = SGD{.lr = 0.1};
    steps.options.distributed.find_unused_parameters = true;
    steps.value = [rank](int64_t) { return rank == 0 ? 2.0 : 4.0; };
  });
  expect_same_on_all(results);
  EXPECT_NEAR(results[0].at("weight")[0].item<float>(), 1 - 6 * 0.1 * 3, 1e-6);  // (2 + 4) / 2
  EXPECT_NEAR(results[0].at("bias")[0].item<float>(), 1 - 6 * 0.1 * 1, 1e-6);    // (2 + 0) / 2
}

// On one rank, before every step: after the first one, which the ranks have compared, nothing runs op by op for it.
TEST(OneRankSets, AValueThatIsThereAndKeepsReplays) {
  const auto results = run_ranks(2, [](const Ranks& ranks) {
    int64_t replays = 0;
    Steps steps{.mode = "graph"};
    steps.act = [&](Model&, BaseTrainer& trainer, int64_t) {
      if (ranks->rank() == 0) trainer.hyper_parameters().set(0, "lr", 0.001);
      replays = 0;
      for (const SignatureReport& report : dynamic_cast<GraphTrainer&>(trainer).report()) replays += report.replays;
    };
    take(steps, ranks);
    return NamedTensors{{"replays", at::scalar_tensor(replays, at::kLong)}};
  });
  expect_same_on_all(results);
  EXPECT_GE(results[0].at("replays").item<int64_t>(), 3);
}

TEST_P(OneRank, TakesTurnsOfTwoTrainersInAnotherOrder) {
  const auto turns = [&](const Ranks& ranks, bool in_order) {
    TrainerOptions options;
    options.distributed.communicator = ranks;
    const ToyTask task = mlp_task();
    const auto first = make_trainer(mode(), task.make(), options), second = make_trainer(mode(), task.make(), options);
    for (uint64_t step = 0; step < 5; ++step) {
      const bool swap = !in_order && step == 3 && ranks->rank() == 1;
      for (const bool of_first : {!swap, swap}) (of_first ? *first : *second).step(task.batch(4, step));
    }
    return weights_of(*first);
  };
  expect_same_on_all(run_ranks(2, [&](const Ranks& ranks) { return turns(ranks, true); }));
  expect_error_on_all(run_ranks(2, [&](const Ranks& ranks) { return turns(ranks, false); }), 2, "trainer number: ");
}

// After the ranks have met: nobody sees it before the timeout.
TEST_P(OneRank, FreezesAParameterInTheMiddleOfAnStep) {
  const auto results = run_ranks(2,
                                 [&](const Ranks& ranks) {
                                   Steps steps{.mode = mode()};
                                   steps.act = [&](Model& net, BaseTrainer& trainer, int64_t step) {
                                     if (step != -1 || ranks->rank() != 1) return;
                                     trainer.on(HookPoint::kBeforeTrainIter, [b = net.b](TrainContext& context) {
                                       at::Tensor(b).requires_grad_(context.progress.step < 3);
                                     });
                                   };
                                   return take(steps, ranks);
                                 },
                                 {.start_timeout = 200, .timeout = 3});
  bool said = false;
  const char* const others[] = {"rank 1 in step 3 (agreement on what trains)", "rank 0 in step 3 (step)"};
  for (const std::size_t rank : {0, 1}) {
    const RankResult& result = results[rank];
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 6) << result.exit_code << ": " << result.error;
    EXPECT_LT(result.seconds, kAtOnce);
    said = said || result.error.find(others[rank]) != std::string::npos;  // who gives up first says it
  }
  EXPECT_TRUE(said) << results[0].error << "\n" << results[1].error;
}

// Patience is for a rank that works; the process below does not, and nobody sees its connections break. Rank 0 has the
// store.
TEST(OneRankIsStopped, WhileTheOthersArePatient) {
  for (const std::size_t stopped : {0, 1}) {
    const auto results = run_ranks(3,
                                   [&](const Ranks& ranks) {
                                     ranks->set_running(true);
                                     ranks->use_start_timeout(true);
                                     ranks->barrier();
                                     if (ranks->rank() == static_cast<int64_t>(stopped)) raise(SIGSTOP);
                                     ranks->barrier();
                                     return NamedTensors();
                                   },
                                   {.start_timeout = 200, .timeout = 2});
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank != stopped)
        expect_rank_error(results[rank], 6, "rank " + std::to_string(stopped) + " is dead or stopped");
    }
  }
}

// In the last hook of a run, when all is done.
TEST_P(OneRank, FailsAfterTheLastStep) {
  const auto results =
      run(mode(), after_step(-1, [](Model&, BaseTrainer& trainer) {
            trainer.on(HookPoint::kAfterTrain, [](TrainContext&) { throw DataError("[LateError] the disk is full"); });
          }));
  expect_rank_error(results[1], 3, "the disk is full");
  expect_rank_error(results[0], 6, "the disk is full");
}

// A metric whose sums depend on what a rank has seen.
class BadSums : public MeanLoss {
 public:
  BadSums(int64_t size, std::string name) : size_(size), name_(std::move(name)) {}
  std::vector<std::string> names() const override { return {name_}; }
  MetricValues compute() const override { return {{name_, 0.0}}; }
  std::vector<at::Tensor> sums(at::Device) override {
    return size_ == 0 ? std::vector<at::Tensor>() : std::vector<at::Tensor>{at::zeros({size_}, at::kDouble)};
  }

 private:
  int64_t size_;
  std::string name_;
};

TEST_P(OneRank, HasOtherSumsOfAMetric) {
  for (const int64_t size : {0, 7}) {
    const auto results = run_ranks(2, [&](const Ranks& ranks) {
      TrainerOptions options;
      options.distributed.communicator = ranks;
      const ToyTask task = mlp_task();
      const auto trainer = make_trainer(mode(), task.make(), options);
      trainer->add_metric(std::make_unique<BadSums>(ranks->rank() == 1 ? size : 5, "recall"));
      trainer->validate(*share_of(task.batch(8, 7).items(), 4, ranks.get()));
      return NamedTensors();
    });
    expect_error_on_all(results, 2, "on rank 0 sums of recall: Double [5]");
  }
}

DUET_IN_BOTH_MODES(OneRank);

}  // namespace
}  // namespace duet
