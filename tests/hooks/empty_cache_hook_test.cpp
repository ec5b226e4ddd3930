#include <c10/core/CachingDeviceAllocator.h>
#include "base/device.h"
#include "hooks/epoch_hooks.h"
#include "make_trainer.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

namespace duet {
namespace {

using testing::loader;
using testing::Names;
using testing::trainer_for;

class EmptyCache : public testing::InBothModes {
 protected:
  // Points between the emptyings of two epochs of three steps, each validated with two batches; a test and a
  // prediction.
  static Names run(const EmptyCacheHookOptions& options) {
    Names calls;
    const auto trainer = trainer_for(GetParam(), {.max_epochs = 2});
    trainer->add_hook(testing::recorder(calls));
    trainer->add_hook(std::make_unique<EmptyCacheHook>(options, [&calls] { calls.emplace_back("empty"); }));
    const auto data = loader(4, 5, false);
    trainer->train(*loader(6), data.get());
    trainer->test(*data);
    trainer->predict(*data);
    Names points;  // that an emptying followed
    for (std::size_t i = 1; i < calls.size(); ++i) {
      if (calls[i] == "empty") points.push_back(calls[i - 1]);
    }
    return points;
  }
};

TEST_P(EmptyCache, FreesAfterEveryEpoch) {
  EXPECT_EQ(run({}), (Names{"after_train_epoch", "after_val_epoch", "after_train_epoch", "after_val_epoch",
                            "after_test_epoch", "after_predict_epoch"}));
}

TEST_P(EmptyCache, FreesOnlyWhatNobodyUses) {
  if (!cuda_available()) GTEST_SKIP() << "no CUDA device";
  const auto weights = [](bool with_hook) {
    TrainerOptions options;
    options.device = "cuda";
    seed_all(3);
    const auto trainer = make_trainer(parse_mode(GetParam()), testing::cnn_task().make(), options);
    if (with_hook) trainer->add_hook(std::make_unique<EmptyCacheHook>(EmptyCacheHookOptions{.after_iter = true}));
    c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(at::kCUDA);
    for (uint64_t n = 0; n < 8; ++n) {
      at::empty({64 << 20}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));  // unused from here on
      const int64_t before = allocator.getDeviceStats(0).reserved_bytes[0].current;
      trainer->step(testing::cnn_task().batch(8, n));
      const int64_t after = allocator.getDeviceStats(0).reserved_bytes[0].current;
      if (n > 4) EXPECT_EQ(after <= before - (64 << 20), with_hook);  // a capture frees it, too
    }
    trainer->finish();
    StateDict copy;
    for (const auto& [name, tensor] : trainer->weights().tensors()) copy.set(name, tensor.cpu());
    return copy;
  };
  testing::expect_same_bits(weights(true), weights(false));
}

DUET_IN_BOTH_MODES(EmptyCache);

}  // namespace
}  // namespace duet
