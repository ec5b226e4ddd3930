#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <set>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/device.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "cli/work_dir.h"
#include "io/png.h"

namespace duet {

// `duet find`: a learning rate or a batch size, found out without training anything that stays.

std::vector<BatchSizeTrial> search_batch_size(int64_t most, int64_t bytes, bool is_careful,
                                              const std::function<BatchSizeTrial(int64_t batch_size)>& run) {
  std::vector<BatchSizeTrial> trials;
  BatchSizeTrial before, largest;  // the last two that fit
  double fastest = 0;
  int64_t next = std::min<int64_t>(2, most), too_large = most + 1, slow = 0;
  while (too_large - largest.batch_size > std::max<int64_t>(1, largest.batch_size / 16) && slow < 2) {
    const auto growth = static_cast<double>(largest.bytes - before.bytes) /
                        static_cast<double>(std::max<int64_t>(1, largest.batch_size - before.batch_size));
    const double expected = growth * static_cast<double>(next - largest.batch_size);
    const bool looks_too_large = is_careful && before.fits && expected > static_cast<double>(bytes - largest.bytes);
    BatchSizeTrial trial = looks_too_large ? BatchSizeTrial{.batch_size = next} : run(next);
    trial.fits = trial.fits && trial.bytes <= bytes;
    trials.push_back(trial);
    if (trial.fits)
      before = std::exchange(largest, trial);
    else
      too_large = next;
    const bool doubles = too_large > most;
    slow = is_careful && doubles && trial.samples_per_second < 1.05 * fastest ? slow + 1 : 0;
    fastest = std::max(fastest, trial.samples_per_second);
    next = doubles ? std::min(2 * largest.batch_size, most) : (largest.batch_size + too_large) / 2;
  }
  return trials;
}

namespace {

using Json = nlohmann::ordered_json;

// The loss over the learning rate on a logarithmic axis from the first to the last, with a grey line at each power of
// ten, a red one at the steepest descent and a green one at the valley: uint8 [height, width, 3].
at::Tensor lr_chart(const LrCurve& curve) {
  constexpr int64_t kWidth = 720, kHeight = 420;
  at::Tensor pixels = at::full({kHeight, kWidth, 3}, 255, at::kByte);
  const auto paint = [&pixels](const at::Tensor& where, at::ArrayRef<int64_t> colour) {
    pixels = at::where(where.unsqueeze(-1), at::tensor(colour, at::kByte), pixels);
  };
  const at::Tensor row = at::arange(kHeight).unsqueeze(1), column = at::arange(kWidth);
  const double first = std::log10(curve.lr.front()), decades = std::log10(curve.lr.back()) - first;
  const auto column_of = [&](double lr_exponent) {
    return column.eq(std::lround((lr_exponent - first) / decades * (kWidth - 1)));
  };
  for (double power = std::ceil(first); power <= first + decades; ++power) paint(column_of(power), {215, 215, 215});
  if (curve.steepest) paint(column_of(std::log10(*curve.steepest)), {210, 30, 30});
  if (curve.valley) paint(column_of(std::log10(*curve.valley)), {0, 150, 60});

  // The last ones, where the loss runs away, would press the others flat; fastai leaves as many out.
  const at::Tensor points = at::tensor(curve.loss, at::kDouble);
  const at::Tensor shown = points.numel() > 10 ? points.slice(0, 0, -5) : points;
  const at::Tensor losses = at::upsample_linear1d(points.view({1, 1, -1}), {kWidth}, /*align_corners=*/true).view(-1);
  const at::Tensor height = (losses - shown.min()) / (shown.max() - shown.min()).clamp_min(1e-12);
  const at::Tensor here = ((1 - height.clamp_max(1)) * (kHeight - 2)).round();
  const at::Tensor before = at::cat({here.narrow(0, 0, 1), here.narrow(0, 0, kWidth - 1)});
  paint(row.ge(at::minimum(here, before)).logical_and(row.le(at::maximum(here, before) + 1)), {30, 90, 200});
  return pixels;
}

int find_lr(const RunConfig& config, const Arguments& arguments) {
  Run run;
  read_training_data(config, run);
  build_loaders(config, run);
  build_trainer(config, config.mode, limited_loop(config, run), run);
  load_start_weights(config, *run.trainer);
  const LrCurve curve = run.trainer->find_lr(*run.train, arguments.lr_finder);
  require<NonFiniteError>(curve.lr.size() >= 2,
                          c10::str("[duet find] found a loss that is not finite at learning rate ",
                                   arguments.lr_finder.min_lr, ", expected a curve; set a lower --min-lr"));
  Json json = {{"lr", curve.lr}, {"loss", curve.loss}, {"steepest", nullptr}, {"valley", nullptr}};
  if (curve.steepest) json["steepest"] = *curve.steepest;
  if (curve.valley) json["valley"] = *curve.valley;
  write_json(arguments.json, json);
  const std::string picture = arguments.output.empty() ? "lr_find.png" : arguments.output;
  const auto text = [](const std::optional<double>& lr) { return lr ? number_text(*lr, "%.3g") : "none"; };
  std::cout << "learning rate by steepest descent (red):  " << text(curve.steepest)
            << "\nlearning rate by valley (green):          " << text(curve.valley) << std::endl;
  write_png(picture, lr_chart(curve), "loss over learning rate");
  std::cout << picture << ": loss over learning rates from " << text(curve.lr.front()) << " to "
            << text(curve.lr.back()) << ", a grey line at each power of ten" << std::endl;
  return 0;
}

constexpr int64_t kUntimed = 3, kTimed = 4;  // graph mode captures in the first ones

bool is_out_of_memory(const std::exception_ptr& error) {
  const std::string text = text_of(error);
  return std::ranges::any_of(std::array{"out of memory", "allocate memory", "bad_alloc", "ALLOC_FAILED"},
                             [&](const char* words) { return text.find(words) != std::string::npos; });
}

BatchSizeTrial try_batch_size(RunConfig config, const Run& data, int64_t batch_size) {
  config.train->loader.batch_size = batch_size;
  config.train->loader.drop_last = data.train_data != nullptr;
  const ScratchFolder folder;
  Measurements measured;
  const at::Device device = parse_device(config.trainer.device);
  reset_peak_bytes(device);
  const std::exception_ptr error = caught([&] {
    Run run = build_measured_run(in_scratch(config, folder.path()), config.mode, data, kUntimed + kTimed);
    run.trainer->add_hook(std::make_unique<MeasureHook>(measured, kUntimed + kTimed));
    run.trainer->train(*run.train);
  });
  if (error && !is_out_of_memory(error)) std::rethrow_exception(error);
  if (error) return {.batch_size = batch_size};
  const double us = spread({measured.step_us.begin() + kUntimed, measured.step_us.end()}).median;
  const auto samples = static_cast<double>(batch_size * config.trainer.loop.accumulate);
  return {batch_size, true, peak_bytes(device), us > 0 ? samples * 1e6 / us : 0};
}

int find_batch_size(RunConfig config, const Arguments& arguments) {
  // Their lines and files are of no run, their steps and lengths those of other batch sizes.
  std::erase_if(config.hooks, [](const HookConfig& hook) {
    const std::set<std::string> kDropped = {"RuntimeInfoHook", "LoggerHook", "CheckpointHook", "ParamSchedulerHook"};
    return kDropped.contains(hook.type());
  });
  config.schedules.clear();
  config.limits.train = {};
  Run data;
  read_training_data(config, data);
  const at::Device device = parse_device(config.trainer.device);
  const auto bytes = static_cast<int64_t>(arguments.memory_share * static_cast<double>(free_bytes(device)));
  const auto trials =
      search_batch_size(data.train_data ? data.train_data->size() : int64_t{1} << 24, bytes, device.is_cpu(),
                        [&](int64_t batch_size) { return try_batch_size(config, data, batch_size); });
  Json json = {{"mode", config.mode}, {"bytes", bytes}, {"batch_size", 0}, {"trials", Json::array()}};
  for (const auto& [batch_size, fits, used, speed] : trials) {
    json["trials"].push_back(
        {{"batch_size", batch_size}, {"fits", fits}, {"bytes", used}, {"samples_per_second", speed}});
    std::cout << "batch_size " << batch_size << ": " << (fits ? "fits" : "too large")
              << (used > 0 ? ", " + readable_bytes(used) : "")
              << (speed > 0 ? number_text(speed, ", %.4g samples/s") : "") << "\n";
    if (fits) json["batch_size"] = std::max(json["batch_size"].get<int64_t>(), batch_size);
  }
  const auto largest = json["batch_size"].get<int64_t>();
  require<ConfigError>(largest > 0, "[duet find] found that no batch fits into " + readable_bytes(bytes) +
                                        ", expected room for one sample; take a smaller model");
  write_json(arguments.json, json);
  std::cout << "largest batch_size that fits into " << readable_bytes(bytes)
            << (device.is_cpu() ? ", as far as larger ones are faster: " : ": ") << largest << std::endl;
  return 0;
}

}  // namespace

int find_command(const Arguments& arguments) {
  RunConfig config = load_run_config(arguments);
  return arguments.find == "lr" ? find_lr(config, arguments) : find_batch_size(std::move(config), arguments);
}

}  // namespace duet
