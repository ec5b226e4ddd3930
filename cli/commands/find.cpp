#include <algorithm>
#include <iostream>
#include <new>
#include <set>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/device.h"
#include "base/log.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/find/batch_size_search.h"
#include "cli/find/lr_chart.h"
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
  try {
    std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const std::exception& other) {
    const std::string_view text = other.what();
    const auto says = [text](const char* words) { return text.find(words) != std::string_view::npos; };
    return says("out of memory") || says("allocate memory") || says("ALLOC_FAILED");
  }
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

void print(const BatchSizeSearch& search) {
  std::vector<std::vector<std::string>> rows = {{"batch_size", "memory", "samples/s", ""}};
  for (const BatchSizeTrial& trial : search.trials) {
    rows.push_back({std::to_string(trial.batch_size), trial.bytes > 0 ? readable_bytes(trial.bytes) : "-",
                    trial.samples_per_second > 0 ? number_text(trial.samples_per_second, "%.4g") : "-",
                    trial.fits ? "" : "too large"});
  }
  std::cout << text_columns(rows) << "largest batch_size within " << readable_bytes(search.bytes) << ": "
            << search.largest() << "; from " << search.fastest() << " on it is as fast as any\n";
  const bool all_fit = std::ranges::all_of(search.trials, &BatchSizeTrial::fits);
  if (all_fit && search.largest() < search.most) std::cout << "larger ones bring no more samples per second\n";
  std::cout << std::flush;
}

int find_batch_size(RunConfig config, const Arguments& arguments) {
  require<ConfigError>(arguments.memory_share > 0 && arguments.memory_share <= 1,
                       c10::str("[duet find] --memory-share is ", arguments.memory_share,
                                ", expected a number above 0 up to 1; correct it"));
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
  BatchSizeSearch search{
      .most = data.train_data ? data.train_data->size() : int64_t{1} << 24,
      .bytes = static_cast<int64_t>(arguments.memory_share * static_cast<double>(free_bytes(device))),
      .is_careful = device.is_cpu()};
  search.search([&](int64_t batch_size) { return try_batch_size(config, data, batch_size); });
  require<ConfigError>(search.largest() > 0, "[duet find] found that no batch fits into " +
                                                 readable_bytes(search.bytes) +
                                                 ", expected room for one sample; take a smaller model");
  Json trials = Json::array();
  for (const BatchSizeTrial& trial : search.trials) {
    trials.push_back({{"batch_size", trial.batch_size},
                      {"fits", trial.fits},
                      {"bytes", trial.bytes},
                      {"samples_per_second", trial.samples_per_second}});
  }
  write_json(arguments.json, {{"mode", config.mode},
                              {"bytes", search.bytes},
                              {"batch_size", search.largest()},
                              {"fastest", search.fastest()},
                              {"trials", trials}});
  print(search);
  return 0;
}

}  // namespace

int find_command(const Arguments& arguments) {
  RunConfig config = load_run_config(arguments);
  config.val.clear();
  return arguments.find == "lr" ? find_lr(config, arguments) : find_batch_size(std::move(config), arguments);
}

}  // namespace duet
