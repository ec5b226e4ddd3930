#include "cli/find/find.h"
#include <algorithm>
#include <array>
#include <iostream>
#include <set>
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

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

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
  write_json(arguments.json, {{"lr", curve.lr},
                              {"loss", curve.loss},
                              {"steepest", json_of(curve.steepest)},
                              {"valley", json_of(curve.valley)}});
  const std::string picture = arguments.output.empty() ? "lr_find.png" : arguments.output;
  write_png(picture, lr_chart(curve), "loss over learning rate; red: steepest descent, green: valley");
  const auto text = [](const std::optional<double>& lr) { return lr ? number_text(*lr, "%.3g") : "none"; };
  std::cout << "learning rate by steepest descent: " << text(curve.steepest)
            << "\nlearning rate by valley:           " << text(curve.valley) << "\n"
            << curve.lr.size() << " steps up to " << text(curve.lr.back()) << ", curve in " << picture << std::endl;
  return 0;
}

constexpr int64_t kWarmUp = 3, kTimed = 4;  // graph mode captures in the first ones

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
    Run run = build_measured_run(in_scratch(config, folder.path()), config.mode, data, kWarmUp + kTimed);
    run.trainer->add_hook(std::make_unique<MeasureHook>(measured, kWarmUp + kTimed));
    run.trainer->train(*run.train);
  });
  if (error && !is_out_of_memory(error)) std::rethrow_exception(error);
  BatchSizeTrial trial{.batch_size = batch_size};
  if (error) return trial;
  const double us = spread({measured.step_us.begin() + kWarmUp, measured.step_us.end()}).median;
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
  std::vector<std::vector<std::string>> rows = {{"batch_size", "memory", "samples/s", ""}};
  Json json = {{"mode", config.mode}, {"bytes", bytes}, {"batch_size", 0}, {"trials", Json::array()}};
  for (const BatchSizeTrial& trial : trials) {
    const auto& [batch_size, fits, used, speed] = trial;
    json["trials"].push_back(
        {{"batch_size", batch_size}, {"fits", fits}, {"bytes", used}, {"samples_per_second", speed}});
    rows.push_back({std::to_string(batch_size), used > 0 ? readable_bytes(used) : "-",
                    speed > 0 ? number_text(speed, "%.4g") : "-", fits ? "" : "too large"});
    if (fits) json["batch_size"] = std::max(json["batch_size"].get<int64_t>(), batch_size);
  }
  const auto largest = json["batch_size"].get<int64_t>();
  require<ConfigError>(largest > 0, "[duet find] found that no batch fits into " + readable_bytes(bytes) +
                                        ", expected room for one sample; take a smaller model");
  write_json(arguments.json, json);
  std::cout << text_columns(rows) << "largest batch_size that fits into " << readable_bytes(bytes)
            << (device.is_cpu() ? ", as far as larger ones are faster: " : ": ") << largest << std::endl;
  return 0;
}

}  // namespace

int find_command(const Arguments& arguments) {
  RunConfig config = load_run_config(arguments);
  config.val.clear();
  return arguments.find == "lr" ? find_lr(config, arguments) : find_batch_size(std::move(config), arguments);
}

}  // namespace duet
