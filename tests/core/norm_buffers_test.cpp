#include <limits>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include "core/task.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"
#include "tests/support/trainer_runs.h"

// Steps that are skipped, of models whose forward pass changes buffers.

namespace duet {
namespace {

class NormBuffers : public testing::InBothModes {};

TEST_P(NormBuffers, KeepWhatTheyWereWhereAStepIsSkipped) {
  seed_all(3);
  const torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1));
  TrainerOptions options;
  options.non_finite = NonFinite::kSkip;
  const auto loss = [](torch::nn::SequentialImpl& model, const Batch& batch) {
    return model.forward(batch["x"]).square().mean();
  };
  const auto trainer = testing::make_trainer(mode(), make_task(net.ptr(), loss), options);
  for (int64_t n = 0; n < 8; ++n) {
    Batch batch{{"x", at::randn({6, 4})}};
    if (n % 4 == 3) batch["x"][2].fill_(std::numeric_limits<float>::quiet_NaN());
    NamedTensors before;
    for (const auto& [name, tensor] : trainer->weights().tensors()) before.emplace_back(name, tensor.clone());
    trainer->step(batch);
    for (const auto& [name, tensor] : before) {
      const bool stays = n % 4 == 3;
      EXPECT_EQ(testing::same_bits(tensor, trainer->weights().tensor(name)), stays) << name << " of step " << n;
    }
  }
}

DUET_IN_BOTH_MODES(NormBuffers);

}  // namespace
}  // namespace duet
