#include "cli/config/run_config.h"
#include <tuple>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"

namespace duet {
namespace {

RunConfig parsed(const std::string& train, const std::string& val) {
  const std::string text = "model: {type: Mlp}\ntrainer: {max_steps: 1}\ndata:\n  train: {type: " + train +
                           "}\n  val: {type: " + val + "}\n";
  return parse_run_config(ConfigNode::parse_text(text, "c.yaml"), "c");
}

std::string value(const RunConfig& config, const std::string& key) { return config.val.at(0).node.child(key).text(); }

TEST(SplitConfig, ValTakesSeedAndFractionOfTheTrainingData) {
  for (const std::string data :
       {"Csv, path: t.csv", "ImageFolder, root: t", "Subset, dataset: {type: Npy, arrays: {x: t.npy}}"}) {
    const RunConfig config = parsed(data + ", split: train, split_seed: 7, val_fraction: 0.5", data + ", split: val");
    EXPECT_EQ(value(config, "split_seed"), "7");
    EXPECT_EQ(value(config, "val_fraction"), "0.5");
  }
}

TEST(SplitConfig, ADifferenceIsAnErrorThatNamesBothKeys) {
  struct Case {
    std::string train, val;
    std::vector<std::string> parts;
  };
  const std::string arrays = "Npy, arrays: {x: t.npy}";
  const std::string folder = "ImageFolder, root: t", subset = "Subset, dataset: {type: " + folder + "}";
  for (const Case& c :
       {Case{"Csv, path: t.csv, split: train, split_seed: 7",
             "Csv, path: ./t.csv, split: val, split_seed: 3",
             {"data.val.split_seed is 3, expected 7", "data.train.split_seed"}},
        Case{"Text, path: t, val_fraction: 0.3",
             "Text, path: t, split: val, val_fraction: 0.5",
             {"data.val.val_fraction", "data.train.val_fraction"}},
        Case{"ImageFolder, root: t",
             "ImageFolder, root: x/../t, split: val",
             {"data.val.split is val", "data.train.split is all", "set data.train.split: train"}},
        Case{folder + ", split: train", subset + ", split: val, split_seed: 9", {"data.val.split_seed is 9"}},
        Case{subset + ", split: train", folder + ", split: val, split_seed: 9", {"data.val.split_seed is 9"}},
        Case{subset, folder + ", split: val", {"set data.train.split: train"}},
        Case{arrays, "Subset, split: val, dataset: {type: " + arrays + "}", {"train, which a Subset has"}},
        Case{"Subset, split: train, dataset: {type: Repeat, times: 2, dataset: {type: Csv, path: t.csv}}",
             "Csv, path: t.csv, split: val",
             {"data.val.split", "data.train.dataset.dataset.split"}},
        Case{"Repeat, times: 2, dataset: {type: Csv, path: t.csv}",
             "Csv, path: t.csv, split: val",
             {"data.val.split", "data.train.dataset.split"}}})
    expect_error<ConfigError>([&] { parsed(c.train, c.val); }, c.parts);
}

std::string warning(const std::string& train, const std::string& val) {
  return testing::stderr_of([&] { parsed(train, val); });
}

TEST(SplitConfig, AnEvaluationOnTrainingDataIsWarnedOf) {
  const std::string half = "Subset, dataset: {type: Csv, path: t.csv}, split: ";
  const std::string some = "Subset, dataset: {type: Npy, arrays: {x: t.npy}}, indices: ";
  const std::string csv = "Csv, path: t.csv", arrays = "Npy, arrays: {x: t.npy}";
  for (const auto& [train, val, is_warned] :
       {std::tuple(csv, csv, true),
        {csv + ", split: train", csv, true},
        {half + "train", half + "all", true},
        {csv + ", split: train", csv + ", split: val, val_fraction: 0.20, split_seed: 0", false},
        {csv, "Csv, path: v.csv, split: val", false},
        {half + "train", half + "val", false},
        {csv + ", split: train", half + "all", true},
        {csv + ", split: train", half + "all, limit: 9", true},
        {csv + ", split: train", half + "val", false},
        {half + "train", csv + ", split: val", false},
        {arrays, arrays, true},
        {arrays, "Npy, arrays: {x: v.npy}", false},
        {some + "[0, 1]", some + "[2]", false}})
    EXPECT_EQ(warning(train, val).find("data.val reads samples that are trained on") != std::string::npos, is_warned)
        << train << " beside " << val;
}

TEST(NormalizeConfig, AnotherOneThanThatOfTheTrainingDataIsWarnedOf) {
  const std::string plain = "{type: Normalize}", other = "{type: Normalize, mean: [0.4, 0.5, 0.6]}";
  for (const auto& [train, val, is_warned] :
       {std::tuple(plain, std::string(), true),
        {"", plain, true},
        {plain, other, true},
        {other, other, false},
        {"{type: RandomFlip}", "{type: Resize, size: 8}", false},
        {plain, "{type: Resize, size: 8}, {type: Normalize, mean: [0.5, 0.5, 0.5], std: 0.5}", false}}) {
    const std::string inner = "{type: ImageFolder, root: b, transforms: [" + val + "]}";
    EXPECT_EQ(warning("ImageFolder, root: a, transforms: [" + train + "]", "Concat, datasets: [" + inner + "]")
                      .find("data.val uses a different Normalize than data.train") != std::string::npos,
              is_warned)
        << train << " beside " << val;
  }
}

// The whole documented config, less what this version has not.
constexpr const char* kFull = R"(work_dir: runs/test
mode: eager
seed: 3
device: cpu
model: {type: SmallCnn, num_classes: 10}
data:
  train: {type: FashionMnist, split: train, batch_size: 64, shuffle: true, num_workers: 2}
  val: {type: FashionMnist, split: test, batch_size: 256}
trainer: {max_epochs: 2, val_interval: 938, accumulate: 1}
optim_wrapper:
  optimizer: {type: AdamW, lr: 1.0e-3, weight_decay: 0.02}
  clip_grad: {max_norm: 1.0}
  amp: off
  loss_scale: dynamic
  paramwise_cfg: {}
  constructor: DefaultOptimWrapperConstructor
param_scheduler: [{type: Linear, end: 100}, {type: Cosine, begin: 100}]
default_hooks:
  {timer: {}, logger: {interval: 50}, param_scheduler: {}, checkpoint: {interval: 500, max_keep: 3, save_best: auto},
   sampler_seed: {}, visualization: {draw: false}}
custom_hooks: []
evaluator: [{type: Accuracy}]
graph: {fallback: auto, cache_bytes: 2 GiB, fuse: exact}
distributed: {bucket_cap_mb: 0.5, first_bucket_mb: 2, broadcast_buffers: false, timeout: 7}
)";

RunConfig full_config(const std::vector<std::string>& overrides = {}) {
  ConfigNode root = ConfigNode::parse_text(kFull, "c.yaml");
  for (const std::string& word : overrides) root.override_with(word);
  return parse_run_config(root, "c");
}

TEST(RunConfig, ReadsEveryPart) {
  const RunConfig c = full_config();
  EXPECT_TRUE(c.train->shuffle);
  ASSERT_EQ(c.val.size(), 1U);
  EXPECT_FALSE(c.val.front().shuffle);
  EXPECT_TRUE(c.test.empty());
  EXPECT_EQ(c.trainer.optimizer.as<AdamW>().weight_decay, 0.02);
  EXPECT_EQ(std::get<ClipNorm>(*c.trainer.clip_grad).max_norm, 1.0);
  EXPECT_FALSE(c.trainer.amp.has_value());
  EXPECT_EQ(std::get<Linear>(c.schedules.at(0).options).start_factor, 0.001);
  ASSERT_EQ(c.hooks.size(), 8U);  // the default ones alone
  EXPECT_EQ(c.hooks.back().node.need<int64_t>("interval"), 500);
  EXPECT_EQ(c.graph.cache_bytes, int64_t{2} << 30);
  EXPECT_EQ(c.trainer.distributed.bucket_bytes, 512 * 1024);
  EXPECT_EQ(c.trainer.distributed.first_bucket_bytes, 2 * 1024 * 1024);
  EXPECT_FALSE(c.trainer.distributed.broadcast_buffers);
  EXPECT_EQ(c.connect.timeout, 7);
}

TEST(RunConfig, SmallestConfigHasDefaults) {
  const RunConfig c = parse_run_config(ConfigNode::parse_text("model: {type: Mlp}\n", "dir/tiny.yaml"), "tiny");
  EXPECT_EQ(c.work_dir, "runs/tiny");
  EXPECT_EQ(c.mode, "eager");
  EXPECT_FALSE(c.train.has_value() || c.trainer.clip_grad.has_value());
  EXPECT_EQ(c.hooks.size(), 8U);
}

TEST(RunConfig, ReadsTimesAndLimitsOfTheLoop) {
  const auto seconds = [](const std::string& time) {
    return full_config({"trainer.max_time=" + time}).trainer.loop.max_seconds;
  };
  const std::vector<std::pair<std::string, double>> cases = {{"null", 0},
                                                             {"0.5", 0.5},
                                                             {"1.5 h", 5400},
                                                             {"1h30m", 5400},
                                                             {"2d 6h 1min 1s", 2 * 86400 + 6 * 3600 + 61},
                                                             {"01:00:00:30", 86400 + 30},
                                                             {"'12:30:05'", 12 * 3600 + 30 * 60 + 5}};
  for (const auto& [time, expected] : cases) EXPECT_EQ(seconds(time), expected) << time;

  for (const auto& [steps, expected] : {std::pair("true", 1), {"7", 7}, {"false", 0}, {"null", 0}})
    EXPECT_EQ(full_config({std::string("trainer.fast_dev_run=") + steps}).dry_run, expected) << steps;
}

TEST(RunConfig, SharesOfBatchesBecomeCounts) {
  const auto limit = [](const std::string& value, int64_t batches) {
    return full_config({"trainer.limit_val_batches=" + value}).limits.val.batches_of(FakeData(batches));
  };
  const std::vector<std::tuple<std::string, int64_t, int64_t>> cases = {{"null", 9, 0}, {"1", 9, 1},   {"20", 9, 20},
                                                                        {"1.0", 9, 9},  {"0.5", 9, 4}, {"0.25", 4, 1}};
  for (const auto& [value, batches, expected] : cases) EXPECT_EQ(limit(value, batches), expected) << value;
  EXPECT_THROW(limit("0.1", 9), ConfigError);  // not one batch
  EXPECT_THROW(limit("0.5", 0), ConfigError);  // of an endless source
}

TEST(RunConfig, OffAndNullWords) {
  EXPECT_FALSE(full_config({"optim_wrapper.amp=false"}).trainer.amp.has_value());
  EXPECT_FALSE(full_config({"optim_wrapper.amp=null"}).trainer.amp.has_value());
  EXPECT_EQ(full_config({"optim_wrapper.amp=bf16"}).trainer.amp, at::kBFloat16);
  EXPECT_FALSE(full_config({"optim_wrapper.clip_grad=null"}).trainer.clip_grad.has_value());
  EXPECT_EQ(full_config({"default_hooks.checkpoint=null"}).hooks.size(), 7U);
  EXPECT_EQ(std::get<ClipNorm>(*full_config({"optim_wrapper.clip_grad.norm_type=.inf"}).trainer.clip_grad).norm_type,
            std::numeric_limits<double>::infinity());
}

// What the fields of options do not say; reference_test.cpp has the rest.
TEST(RunConfig, MistakesNameTheKey) {
  for (const auto& [word, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"work_dir=''", {"work_dir is empty"}},
           {"optim_wrapper.optimizer.lr=", {"'optim_wrapper.optimizer.lr=' without a value", "lr=null"}},
           {"trainer.max_epochs= # many", {"without a value"}},
           {"device=gpu", {"device", "gpu"}},
           {"model=SmallCnn", {"model is 'SmallCnn'", "expected a map"}},
           {"model={}", {"model.type is missing"}},
           {"data.train={batch_size: 3}", {"data.train.type is missing"}},
           {"data.train.sampler=random", {"data.train.sampler", "default, infinite"}},
           {"optim_wrapper.optimizer={type: SGD, nesterov: true}", {"optim_wrapper.optimizer", "momentum > 0"}},
           {"optim_wrapper.optimizer.lr=.nan", {"optimizer.lr is .nan"}},
           {"optim_wrapper.type=AdamW", {"optim_wrapper.type is 'AdamW'", "optimizer: {type: AdamW}"}},
           {"optim_wrapper.clip_grad=1.0", {"clip_grad is 1.0", "expected a map"}},
           {"optim_wrapper.amp=fp8", {"amp is 'fp8'", "off, bf16 or fp16"}},
           {"optim_wrapper.loss_scale=0", {"loss_scale is 0", "> 0"}},
           {"optim_wrapper.loss_scale=often", {"loss_scale is 'often', expected dynamic, a number above 0, or a map"}},
           {"optim_wrapper.loss_scale={growth: 2}", {"unknown key 'growth' in optim_wrapper.loss_scale"}},
           {"optim_wrapper.type=AmpOptimWrapper", {"optim_wrapper.type", "beside amp", "dtype"}},
           {"optim_wrapper={type: AmpOptimWrapper, dtype: off}", {"optim_wrapper.dtype", "float16 or bfloat16"}},
           {"param_scheduler=[{type: Cosine, begin: 5, end: 5}]", {"param_scheduler.0", "end"}},
           {"param_scheduler=[{type: Cosine, convert_to_iter_based: true}]", {"by_epoch: true"}},
           {"default_hooks.loger=null", {"unknown key 'loger' in default_hooks", "did you mean 'logger'"}},
           {"default_hooks.timer=5", {"default_hooks.timer is 5"}},
           {"default_hooks.mine={interval: 5}", {"unknown key 'mine' in default_hooks", "needs a type"}},
           {"trainer.max_time=soon", {"trainer.max_time is 'soon'", "1h30m"}},
           {"trainer.max_time='1:2'", {"trainer.max_time is '1:2'", "days:hours:minutes:seconds"}},
           {"trainer.limit_train_batches=0", {"limit_train_batches is 0", "at least 1"}},
           {"trainer.fast_dev_run=maybe", {"fast_dev_run is 'maybe'", "a number of steps"}},
           {"graph.cache_bytes=lots", {"graph.cache_bytes is 'lots'", "2 GiB"}}}) {
    const std::string text = config_error_of([&] { full_config({word}); });
    EXPECT_EQ(text.rfind("[Config] command line: ", 0), 0U) << text;
    expect_contains(text, parts);
  }
}

TEST(RunConfig, APrefixOfWeightsMayEndWithItsDot) {
  for (const auto& [text, prefix] : {std::pair("backbone.", "backbone"), {"backbone", "backbone"}, {"''", ""}}) {
    const std::string word = "load_from={path: w.pt, prefix: " + std::string(text) + "}";
    EXPECT_EQ(full_config({word}).load_from->source.prefix, prefix);
  }
}

}  // namespace
}  // namespace duet
