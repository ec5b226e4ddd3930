#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "data/data_loader.h"
#include "data/dataset.h"
#include "tests/graph/both_modes.h"
#include "tests/support/expect_error.h"

// Forward passes that are replayed: what they used is checked before it is trusted.

namespace duet {
namespace {

using testing::batch_at;
using testing::make_trainer;
using testing::TwoLayers;

// Without checks of the host code the comparisons find it, and nobody learns too late that results were wrong.
TEST(EvaluationTrust, OldNumbersThatWereUsedAreAnError) {
  double factor = 1;
  const auto scaled = [&factor](TwoLayers& net, const Batch& batch) -> NamedTensors {
    return {{"prediction", net.forward(batch["input"]) * factor}};
  };
  const auto trainer =
      make_trainer("graph", testing::task_of(std::make_shared<TwoLayers>(), testing::plain_loss, scaled), {},
                   {.check = Check::kOff});
  for (int64_t n = 0; n < 30; ++n) trainer->predict(batch_at(n));
  factor = 2;
  expect_error<GraphError>(
      [&] {
        for (int64_t n = 0; n < 3000; ++n) trainer->predict(batch_at(n));
        trainer->finish();
      },
      {"prediction (input Float[8, 16]", "evaluate them again"});
}

TEST(EvaluationTrust, APassChecksWhatItReplayedBeforeItsResultsAreSeen) {
  double factor = 1;
  const auto loss = [&factor](TwoLayers& net, const Batch& batch) { return testing::plain_loss(net, batch) * factor; };
  GraphOptions options{.check_budget = 0, .verify_interval = 0};
  const auto trainer = make_trainer("graph", make_task(std::make_shared<TwoLayers>(), loss), {}, options);
  const auto source = [](int64_t samples) {
    DataLoaderOptions loader;
    loader.batch_size = 8;
    return DataLoader(std::make_shared<TensorDataset>(batch_at(1, samples).items()),
                      std::make_unique<EpochSampler>(samples, /*shuffle=*/false, 4), loader);
  };
  DataLoader many = source(8 * 1100), few = source(8 * 4);
  trainer->validate(many);  // past the replays that are checked in a row
  factor = 2;
  expect_error<GraphError>([&] { trainer->validate(few); }, {"validation (", "evaluate them again"});
}

}  // namespace
}  // namespace duet
