#include <algorithm>
#include <filesystem>
#include <set>
#include <ATen/ops/zeros.h>
#include "hooks/default_hooks.h"
#include "hooks/prediction_hooks.h"
#include "hooks/profiler_hook.h"
#include "tests/support/log_lines.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

// What a run of two ranks with every writing hook leaves in its folder.

namespace duet {
namespace {

namespace fs = std::filesystem;
using testing::Json;

class DistributedFiles : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kSteps = 9;

  static NamedTensors run(const std::string& folder, const std::shared_ptr<Communicator>& ranks) {
    seed_all(3);
    const testing::ToyTask task = testing::mlp_task();
    TrainerOptions options;
    options.loop = {.max_steps = kSteps, .val_interval = 9};
    options.work_dir = folder;
    options.distributed = {.communicator = ranks, .bucket_bytes = 1, .first_bucket_bytes = 1};  // four buckets
    const auto trainer = testing::make_trainer(GetParam(), task.make(), options);
    DefaultHooksOptions hooks;
    hooks.logger = {.interval = 3, .progress = false, .sinks = {{"jsonl"}}};
    hooks.visualization = {.draw = true, .interval = 1, .max_samples = 1};
    hooks.visualization.painter = [](const Batch&, const NamedTensors&, int64_t) {
      return at::zeros({2, 2, 3}, at::kByte);
    };
    hooks.checkpoint.interval = 4;
    register_default_hooks(*trainer, hooks);
    trainer->add_hook(std::make_unique<ProfilerHook>(ProfilerHookOptions{.skip_first = 5, .active = 1}));
    trainer->add_hook(std::make_unique<PredictionWriterHook>(PredictionWriterHookOptions{.format = "both"}));
    const auto data = testing::share_of(testing::numbered_samples(task, 24), 8, ranks.get());
    const auto validation = testing::share_of(testing::numbered_samples(task, 5), 4, ranks.get(), false);
    trainer->train(*data, validation.get());
    trainer->predict(*validation);
    return {};
  }

  static std::set<std::string> files_of(const TempDir& folder) {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
      const fs::path path = fs::relative(entry.path(), folder.path());
      if (entry.is_regular_file() && *path.begin() != "checkpoints") files.insert(path.string());
    }
    return files;
  }
};

// Events of a trace by name, in order of their beginning.
std::vector<Json> events_of(const Json& trace, const std::vector<std::string>& names) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X") continue;
    if (std::find(names.begin(), names.end(), event.value("name", "")) != names.end()) found.push_back(event);
  }
  std::sort(found.begin(), found.end(),
            [](const Json& a, const Json& b) { return a.at("ts").get<double>() < b.at("ts").get<double>(); });
  return found;
}

// Of a step that is not verified, which would run both ways. The values' sum starts before backward, and the
// buckets' one after another while products of backward are still to come.
void check_trace(const std::string& path) {
  std::ifstream in(path);
  const Json trace = Json::parse(in);
  const auto sums = events_of(trace, {"duet::start_sum_"});
  ASSERT_EQ(sums.size(), 5U) << path;
  EXPECT_EQ(events_of(trace, {"duet::finish_"}).size(), 5U) << path;
  const auto products =
      events_of(trace, {"aten::mm", "aten::addmm", "duet::exact_mm", "aten::mm.out", "aten::addmm.out"});
  ASSERT_FALSE(products.empty()) << path;
  EXPECT_LT(sums[1].at("ts").get<double>(), products.back().at("ts").get<double>()) << path;
}

TEST_P(DistributedFiles, AreWrittenOnceOrByEveryRankUnderItsName) {
  const TempDir folder;
  testing::expect_no_error(
      testing::run_ranks(2, [&](const auto& ranks) { return run(folder.path().string(), ranks); }));
  const std::set<std::string> expected = {"log.jsonl",
                                          "predictions/rank-0/predictions.jsonl",
                                          "predictions/rank-0/predictions.safetensors",
                                          "predictions/rank-1/predictions.jsonl",
                                          "predictions/rank-1/predictions.safetensors",
                                          "trace/step-8-8.rank-0.json",
                                          "trace/step-8-8.rank-1.json",
                                          "vis_data/predict_0_9.png",
                                          "vis_data/predict_4_9.png",
                                          "vis_data/val_0_9.png",
                                          "vis_data/val_4_9.png"};
  EXPECT_EQ(files_of(folder), expected);
  for (const char* step : {"step-4", "step-8", "step-9"})
    EXPECT_TRUE(fs::exists(folder / "checkpoints/" + step)) << step;
  for (const char* rank : {"0", "1"}) check_trace(folder / "trace/step-8-8.rank-" + rank + ".json");

  // 5 samples in batches of 2 per rank: 2 and 2, then one that rank 0 takes.
  EXPECT_EQ(testing::lines_of(folder / "predictions/rank-0/predictions.jsonl").size(), 3U);
  EXPECT_EQ(testing::lines_of(folder / "predictions/rank-1/predictions.jsonl").size(), 2U);

  const auto lines = testing::lines_of(folder / "log.jsonl");
  EXPECT_EQ(testing::kind_of(lines, "start").size(), 1U);
  EXPECT_EQ(testing::kind_of(lines, "val").size(), 1U);
  const auto train = testing::kind_of(lines, "train");
  ASSERT_EQ(train.size(), 3U);
  // Three steps of 8 samples, 4 of each rank.
  EXPECT_NEAR(train[0].at("samples_per_second").get<double>() * train[0].at("time").get<double>(), 8, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Modes, DistributedFiles, ::testing::Values("eager", "graph"));

}  // namespace
}  // namespace duet
