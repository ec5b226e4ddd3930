#include "hooks/histogram_hook.h"
#include <cmath>
#include <map>
#include <numeric>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include "base/device.h"
#include "base/error.h"
#include "core/task.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

namespace duet {
namespace {

using ::testing::ElementsAre;
using testing::loader;
using testing::trainer_for;

TEST(HistogramOf, CountsAsNumpyDoes) {
  // numpy.histogram([0, 0.5, 1, 1, 2, 4], 4)
  const Histogram made = histogram_of(at::tensor({0.0, 0.5, 1.0, 1.0, 2.0, 4.0}), 4).value();
  EXPECT_THAT(made.counts, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(made.edges, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(made.sum, 8.5);
  EXPECT_EQ(made.sum_of_squares, 22.25);
  const Histogram equal = histogram_of(at::full({3, 2}, 7), 2).value();
  EXPECT_THAT(equal.counts, ElementsAre(0, 6));
  EXPECT_THAT(equal.edges, ElementsAre(6.5, 7, 7.5));
}

TEST(HistogramOf, TakesTensorsOfAllKindsAndFiniteValuesAlone) {
  const double inf = INFINITY;
  const Histogram made = histogram_of(at::tensor({1.0, NAN, 3.0, inf, -inf}), 2).value();
  EXPECT_THAT(made.counts, ElementsAre(1, 1));
  EXPECT_FALSE(histogram_of(at::tensor({inf, NAN}), 2).has_value());
  EXPECT_FALSE(histogram_of(at::empty({0}), 2).has_value());
  const at::Tensor indices = at::tensor({1, 1, 4}, at::kLong).view({1, 3});
  const at::Tensor sparse = at::sparse_coo_tensor(indices, at::tensor({1.0, 2.0, 5.0}), {6});
  EXPECT_THAT(histogram_of(sparse, 2).value().edges, ElementsAre(3, 4, 5)) << "1 + 2 and 5";
  EXPECT_THAT(histogram_of(at::complex(at::tensor({1.0}), at::tensor({-1.0})), 2).value().edges, ElementsAre(-1, 0, 1));
  EXPECT_THAT(histogram_of(at::tensor({8.0, 16.0}).to(at::kHalf), 1).value().edges, ElementsAre(8, 16));
}

class HistogramHookTest : public testing::InBothModes {
 protected:
  // Seven steps. What was logged, by step, the weights in the end and the last gradients.
  struct Seen {
    std::map<int64_t, NamedHistograms> made;
    StateDict weights;
    NamedTensors gradients;
  };
  static Seen run(const std::string& mode, std::optional<HistogramHookOptions> options) {
    Seen seen;
    const auto trainer = trainer_for(mode, {.max_steps = 7});
    if (options) trainer->add_hook(std::make_unique<HistogramHook>(*options));
    RunLog::Listening listening;
    trainer->on(HookPoint::kBeforeRun, [&](TrainContext& run) {
      listening = run.log.listen(nullptr, nullptr, [&](const NamedHistograms& made) {
        EXPECT_TRUE(seen.made.emplace(run.progress.step, made).second);
      });
    });
    trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& run) {
      seen.gradients.clear();
      for (const auto& [name, parameter] : *run.step.parameters) {
        seen.gradients.emplace_back(name, parameter.grad().clone());
      }
    });
    trainer->train(*loader(6));
    seen.weights = trainer->weights();
    return seen;
  }
};

TEST_P(HistogramHookTest, LogsWeightsAndGradientsAtItsIntervalAndChangesNothing) {
  const Seen seen = run(GetParam(), HistogramHookOptions{.interval = 7, .bins = 8});
  ASSERT_EQ(seen.made.size(), 1U);
  const NamedHistograms& made = seen.made.at(7);
  ASSERT_EQ(made.size(), 2 * seen.gradients.size());
  for (std::size_t i = 0; i < seen.gradients.size(); ++i) {
    const auto& [name, gradient] = seen.gradients[i];
    const at::Tensor weight = seen.weights.tensor(name);
    EXPECT_EQ(made[2 * i].first, "weights/" + name);
    EXPECT_EQ(made[2 * i + 1].first, "gradients/" + name);
    EXPECT_EQ(made[2 * i].second.counts, histogram_of(weight, 8)->counts);
    EXPECT_EQ(made[2 * i].second.edges, histogram_of(weight, 8)->edges);
    EXPECT_EQ(made[2 * i + 1].second.edges, histogram_of(gradient, 8)->edges);
    const std::vector<int64_t>& counts = made[2 * i].second.counts;
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), weight.numel());
  }
  testing::expect_same_bits(seen.weights, run(GetParam(), std::nullopt).weights);
  testing::expect_same_bits(seen.weights, run("eager", HistogramHookOptions{.interval = 1}).weights);
  EXPECT_EQ(run(GetParam(), HistogramHookOptions{.interval = 2}).made.size(), 3U);
}

// The optimizers of one kind divide by the scale in their kernel, those of the other before.
TEST_P(HistogramHookTest, GradientsAreThoseThatTheOptimizerWasGiven) {
  for (const OptimizerOptions& optimizer : {OptimizerOptions(AdamW{.lr = 1e-3}), OptimizerOptions(Adadelta{})}) {
    for (const bool scaled : {false, true}) {
      TrainerOptions options;
      options.optimizer = optimizer;
      options.clip_grad = ClipNorm{.max_norm = 0.05};
      if (scaled) options.loss_scale = LossScaleOptions{.init_scale = 1024};
      seed_all(3);
      const auto trainer = testing::make_trainer(GetParam(), testing::mlp_task().make(), options, {});
      trainer->add_hook(std::make_unique<HistogramHook>(HistogramHookOptions{.interval = 1, .weights = false}));
      double squares = 0, norm = 0;
      RunLog::Listening listening;
      trainer->on(HookPoint::kBeforeRun, [&](TrainContext& run) {
        listening = run.log.listen(nullptr, nullptr, [&](const NamedHistograms& made) {
          squares = 0;
          for (const auto& [name, histogram] : made) squares += histogram.sum_of_squares;
        });
      });
      trainer->on(HookPoint::kAfterTrainIter,
                  [&](TrainContext& run) { norm = run.step.result->grad_norm.item<double>(); });
      for (uint64_t i = 0; i < 4; ++i) trainer->step(testing::mlp_task().batch(8, i));
      EXPECT_GT(norm, 0.05);
      EXPECT_NEAR(std::sqrt(squares), 0.05, 1e-4) << optimizer.type() << (scaled ? ", scaled" : "");
    }
  }
}

DUET_IN_BOTH_MODES(HistogramHookTest);

}  // namespace
}  // namespace duet
