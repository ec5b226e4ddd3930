#include <gtest/gtest.h>
#include "base/error.h"
#include "metrics/metric.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

bool less(const std::string& metric, const std::string& rule = "") { return less_is_better("Test", metric, rule); }

// The keys of mmengine's CheckpointHook, and what users make of them.
TEST(MetricRule, KnowsWhatMmengineKnows) {
  for (const char* name : {"acc", "top", "AR@100", "auc", "precision", "mAP", "mDice", "mIoU", "mAcc", "aAcc", "ACC",
                           "accuracy", "accuracy/top1", "coco/bbox_mAP", "single-label/precision", "val_auc"}) {
    EXPECT_FALSE(less(name)) << name;
  }
  for (const char* name : {"loss", "val_LOSS", "val/loss", "decode.loss_ce"}) EXPECT_TRUE(less(name)) << name;
}

TEST(MetricRule, KnowsOurMetrics) {
  for (const char* name : {"mFscore", "mRecall", "f1_macro", "IoU_shirt", "test/f1_3", "psnr"})
    EXPECT_FALSE(less(name)) << name;
  for (const char* name : {"perplexity", "word_error_rate", "rmse", "val-mse", "MAPE", "text/nll", "top1_error"}) {
    EXPECT_TRUE(less(name)) << name;
  }
}

TEST(MetricRule, GoesByTheLastPartFirst) {
  EXPECT_TRUE(less("accuracy_head/loss"));
  EXPECT_FALSE(less("loss_head/mIoU"));
  EXPECT_FALSE(less("accuracy/shirts"));
}

TEST(MetricRule, RefusesToGuess) {
  expect_error<ConfigError>([] { less("score"); }, {"[Test] found metric 'score'", "not what is better", "set rule"});
  expect_error<ConfigError>([] { less("acc_loss"); }, {"'acc_loss'", "both", "set rule"});
  expect_error<ConfigError>([] { less(""); }, {"''"});
}

}  // namespace
}  // namespace duet
