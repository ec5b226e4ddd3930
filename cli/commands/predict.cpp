#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/evaluation.h"
#include "cli/report.h"
#include "hooks/prediction_writer_hook.h"

namespace duet {

namespace {

const DataConfig& data_to_predict(const RunConfig& config) {
  for (const std::optional<DataConfig>* data : {&config.predict, &config.test, &config.val}) {
    if (*data) return **data;
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

// Whether a file can be made there shows before the model has gone through the data.
void check_writable_folder(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const std::string probe = c10::str(folder, "/.duet-", ::getpid());
  if (!failed && std::ofstream(probe)) {
    std::filesystem::remove(probe, failed);
    return;
  }
  throw ConfigError("[duet] cannot write predictions to '" + folder + "', expected a writable folder" +
                    (failed ? " (" + failed.message() + ")" : "") + "; name another one with --output");
}

// Files of an earlier predict, with the time they were written: those that this one does not write anew would be taken
// for its own, in another format, or of more batches.
class EarlierPredictions {
 public:
  explicit EarlierPredictions(const std::string& folder) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      const bool one_file = name == "predictions.safetensors" || name == "predictions.jsonl";
      if (one_file || is_prediction_of_batch(name)) files_.emplace_back(entry.path(), entry.last_write_time(ignored));
    }
  }
  // Once this predict has written its own. `input` is what it read.
  void remove(const std::string& input) const {
    std::error_code ignored;
    for (const auto& [path, written] : files_) {
      const bool anew = std::filesystem::last_write_time(path, ignored) != written;
      if (!anew && !std::filesystem::equivalent(path, input, ignored)) std::filesystem::remove(path, ignored);
    }
  }

 private:
  std::vector<std::pair<std::filesystem::path, std::filesystem::file_time_type>> files_;
};

}  // namespace

int predict_command(const Arguments& arguments) {
  const RunConfig config = load_run_config(arguments);
  check_writable(arguments.json);
  const DataConfig& data = data_to_predict(config);
  const std::string wanted = arguments.output.empty() ? configured_folder(config) : arguments.output;
  const std::string folder = wanted.empty() ? config.work_dir + "/predictions" : wanted;
  const std::string checkpoint = find_checkpoint(config, arguments.checkpoint);
  check_writable_folder(folder);  // makes it, so not before there is something to write
  const Evaluation evaluation = open_evaluation(config, data, checkpoint, folder);
  BaseTrainer& trainer = *evaluation.run.trainer;
  add_prediction_writer(folder, trainer);
  const EarlierPredictions earlier(folder);
  int64_t samples = 0;
  trainer.predict(*evaluation.run.test, [&](const Batch& batch, const NamedTensors&) { samples += batch.size(); });
  earlier.remove(data.node.child("path").text());

  nlohmann::ordered_json json;
  json["checkpoint"] = evaluation.checkpoint;
  json["step"] = evaluation.step ? nlohmann::ordered_json(*evaluation.step) : nlohmann::ordered_json();
  json["data"] = data.node.path();
  json["samples"] = samples;
  json["folder"] = folder;
  write_json(arguments.json, json);
  std::cout << evaluation.checkpoint << " on " << samples << " samples of " << data.node.path() << "\npredictions in "
            << folder << std::endl;
  return 0;
}

}  // namespace duet
