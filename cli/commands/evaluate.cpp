#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "cli/run_identity.h"
#include "cli/runs/text_columns.h"
#include "cli/work_dir.h"
#include "core/detail/run_state.h"
#include "core/task.h"
#include "hooks/ema_hook.h"
#include "hooks/prediction_hooks.h"

namespace duet {

// `duet eval` and `duet predict`.

namespace {

// Averages of the weights are evaluated in their place; other hooks may go on from what they know.
void load_hooks(const StateDict& checkpoint, BaseTrainer& trainer) {
  for (const std::string& name : trainer.hooks().order()) {
    Hook& hook = *trainer.hooks().find(name);
    const bool averages = dynamic_cast<EMAHook*>(&hook) != nullptr;
    const StateDict state = checkpoint.part("hooks." + name);
    if (state.tensors().empty() && state.values().empty()) {
      if (averages) log_warning("the checkpoint holds no state of hook '" + name + "', which has no effect here");
      continue;
    }
    hook.load_state_dict(state);
    if (averages) log_info("hook '" + name + "' has its state from the checkpoint");
  }
}

// Averages that the checkpoint holds and nobody here asks for.
void warn_of_unused_averages(const StateDict& checkpoint, BaseTrainer& trainer) {
  std::set<std::string> told;
  const StateDict hooks = checkpoint.part("hooks");
  for (const auto& [tensor, value] : hooks.tensors()) {
    const std::string name = tensor.substr(0, tensor.find(".weights."));
    if (name == tensor || trainer.hooks().find(name) != nullptr || !told.insert(name).second) continue;
    log_warning("the checkpoint holds averages of the weights, '" + name + "', and the config no hook of that name: " +
                "the plain weights are used; add custom_hooks=[{type: EMAHook, name: " + name +
                "}] to use the averages");
  }
}

bool is_weights_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// A result of half a model would be worth nothing; other floating-point types are converted.
void load_weights_file(const std::string& path, Task& task) {
  const StateDict weights = read_weights({.path = path});
  const WeightsReport fit = match_weights(task, weights);
  if (!fit.missing.empty() || !fit.unexpected.empty() || !fit.mismatched.empty()) {
    throw CheckpointError("[duet] '" + path + "' does not fit the model exactly: " + fit.text() +
                          "\nname the weights of this model, or correct the model of the config");
  }
  log_info("loaded weights from '" + path + "': " + load_matching_weights(task, weights).text());
}

// What --checkpoint means: best, latest, a file of weights, a folder (see CheckpointStore::find), or (empty) the best
// one if there is one. Throws CheckpointError if there is none.
std::string find_checkpoint(const RunConfig& config, const std::string& wanted) {
  const bool is_best = wanted == "best" || wanted.starts_with("best_");
  if (!wanted.empty() && !is_best && wanted != "latest") {
    const std::string path = CheckpointStore::follow(wanted);
    return is_weights_file(path) ? path : CheckpointStore::find(path);
  }
  const std::string root = CheckpointStore::root_of(config.work_dir);
  const CheckpointStore store(root);
  if (wanted != "latest") {
    const std::string file = is_best ? wanted : CheckpointStore::kBestFile;
    if (const std::optional<std::string> best = store.find_best(file)) return *best;
    std::error_code ignored;
    if (is_best || std::filesystem::exists(root + "/" + file, ignored)) {  // another one in its place could be worse
      throw CheckpointError("[duet] there is no " + file + " checkpoint in '" + root +
                            "'; train with save_best, or name another one (--checkpoint latest)");
    }
  }
  if (const std::optional<std::string> latest = store.find_latest()) return *latest;
  std::error_code ignored;
  const bool has_earlier = std::filesystem::exists(root + ".1", ignored);
  throw CheckpointError("[duet] there is no checkpoint in '" + root + "'" +
                        (has_earlier ? ", those of an earlier run are in '" + root + ".1'" : "") +
                        "; train first, or name one with --checkpoint");
}

// Rows to predict encode by themselves if there is no training data.
const Dataset* encoding_data(const Run& run) {
  if (run.train_data || run.test_data.empty()) return run.train_data.get();
  return run.test_data.front().get();
}

}  // namespace

Evaluation open_evaluation(const RunConfig& config, const std::vector<DataConfig>& data, const std::string& checkpoint,
                           const std::string& output) {
  Evaluation evaluation;
  evaluation.checkpoint = from_main(config.communicator(), [&] { return find_checkpoint(config, checkpoint); });
  const bool weights_alone = is_weights_file(evaluation.checkpoint);
  StateDict state;
  RunIdentity trained;
  if (!weights_alone) {
    LoadedCheckpoint read = read_on_main(config.communicator(), evaluation.checkpoint);
    state = std::move(read.state);
    trained = data_everywhere(config.communicator(), read.run);
    evaluation.step = state.integer("trainer.step");
  }
  evaluation.run = build_evaluation(config, data, output, trained);
  if (trained.encoding.empty()) warn_of_own_encoding(encoding_data(evaluation.run), evaluation.checkpoint);
  BaseTrainer& trainer = *evaluation.run.trainer;
  run_on_all_ranks(config.communicator(), [&] {
    if (weights_alone) {
      load_weights_file(evaluation.checkpoint, trainer.task());
      load_hooks({}, trainer);
    } else {
      trainer.load_weights(state.part("model"), /*strict=*/true, evaluation.step);
      load_hooks(state, trainer);
      warn_of_unused_averages(state, trainer);
    }
  });
  return evaluation;
}

namespace {

// What both commands say of it first.
nlohmann::ordered_json json_of(const Evaluation& evaluation) {
  return {{"checkpoint", evaluation.checkpoint},
          {"step", evaluation.step ? nlohmann::ordered_json(*evaluation.step) : nlohmann::ordered_json()}};
}

// "data.val.clean, data.val.noisy"
std::string paths_of(const std::vector<DataConfig>& data) {
  std::vector<std::string> paths;
  for (const DataConfig& one : data) paths.push_back(one.node.path());
  return join(paths);
}

int evaluate(const Arguments& arguments, RunConfig& config) {
  run_on_main(config.communicator(), [&] { check_writable(arguments.json); });
  if (!config.test.empty()) config.metrics = config.test_metrics;
  const std::vector<DataConfig>& data = config.test.empty() ? config.val : config.test;
  if (data.empty()) config.root.child("data").fail("test", "and data.val are both missing; add one to evaluate on");
  Evaluation evaluation = open_evaluation(config, data, arguments.checkpoint);
  int64_t samples = 0;
  const auto count = [&samples](TrainContext& at) { samples += at.evaluation.batch->size(); };
  evaluation.run.trainer->on(HookPoint::kAfterTestIter, count, "count", kLowest);
  const MetricValues metrics = test_on(data, evaluation.run);
  int64_t of_all_ranks = 0;
  for (const int64_t of_rank : config.communicator().gather(samples)) of_all_ranks += of_rank;
  if (!config.is_main()) return 0;

  nlohmann::ordered_json json = json_of(evaluation);
  json["metrics"] = metrics;
  write_json(arguments.json, json);
  std::cout << evaluation.checkpoint << " on " << of_all_ranks << " samples of " << paths_of(data) << '\n';
  for (const auto& [name, value] : metrics) std::cout << "  " << one_line(name) << " " << number_text(value) << '\n';
  std::cout.flush();
  return 0;
}

const DataConfig& data_to_predict(const RunConfig& config) {
  if (config.predict) return *config.predict;
  for (const auto* data : {&config.test, &config.val}) {
    if (data->size() == 1) return data->front();
    if (data->size() > 1) {
      config.root.child("data").fail(
          "predict", "is missing, and there are several to choose from (" + paths_of(*data) + "); add it");
    }
  }
  config.root.child("data").fail("predict", "and data.test and data.val are all missing; add one to predict on");
}

// Where the config's own writer puts its files; empty: it has none, or one without a folder of its own.
std::string configured_folder(const RunConfig& config) {
  for (const HookConfig& hook : config.hooks) {
    if (hook.type() == "PredictionWriterHook") return hook.node.find<std::string>("folder").value_or("");
  }
  return "";
}

using FileTimes = std::map<std::filesystem::path, std::filesystem::file_time_type>;

// Files of predictions in a folder, and when they were written.
FileTimes predictions_in(const std::string& folder) {
  FileTimes times;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool one_file = name == "predictions.safetensors" || name == "predictions.jsonl";
    if (one_file || is_prediction_of_batch(name)) times[entry.path()] = entry.last_write_time(ignored);
  }
  return times;
}

// Files of an earlier predict would be taken for those of this one, in another format, or of more batches. `input` is
// what it has read.
void remove_earlier_predictions(const std::string& folder, const FileTimes& earlier, const std::string& input) {
  std::error_code ignored;
  for (const auto& [path, time] : predictions_in(folder)) {
    const auto found = earlier.find(path);
    const bool is_earlier = found != earlier.end() && found->second == time;
    if (is_earlier && !std::filesystem::equivalent(path, input, ignored)) std::filesystem::remove(path, ignored);
  }
}

}  // namespace

int eval_command(const Arguments& arguments) {
  return run_on_ranks(
      arguments.launch, [&] { return load_run_config(arguments); },
      [&](RunConfig& config) { return evaluate(arguments, config); });
}

int predict_command(const Arguments& arguments) {
  const RunConfig config = load_run_config(arguments);
  DataConfig data = data_to_predict(config);
  data.shuffle = data.loader.drop_last = false;  // a file of predictions has all samples in their order
  const std::string wanted = arguments.output.empty() ? configured_folder(config) : arguments.output;
  const std::string folder = wanted.empty() ? config.work_dir + "/predictions" : wanted;
  const std::string checkpoint = find_checkpoint(config, arguments.checkpoint);
  make_folder(folder, "name another one with --output");  // not before there is something to write
  const FileTimes earlier = predictions_in(folder);
  const Evaluation evaluation = open_evaluation(config, {data}, checkpoint, folder);
  BaseTrainer& trainer = *evaluation.run.trainer;
  int64_t samples = 0;
  trainer.predict(*evaluation.run.test.front(),
                  [&](const Batch& batch, const NamedTensors&) { samples += batch.size(); });
  remove_earlier_predictions(folder, earlier, data.node.child("path").text());

  nlohmann::ordered_json json = json_of(evaluation);
  json["data"] = data.node.path();
  json["samples"] = samples;
  json["folder"] = folder;
  write_json(arguments.json, json);
  std::cout << evaluation.checkpoint << " on " << samples << " samples of " << data.node.path() << "\npredictions in "
            << folder << std::endl;
  return 0;
}

}  // namespace duet
