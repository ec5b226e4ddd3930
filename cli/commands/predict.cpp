#include <duet/cli/commands/commands.h>
#include <duet/cli/evaluation.h>
#include <duet/cli/report.h>
#include <duet/hooks/prediction_writer_hook.h>
#include <nlohmann/json.hpp>

#include <iostream>

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
  for (const ConfigNode& hook : config.hooks.custom_hooks) {
    if (hook.need<std::string>("type") == "PredictionWriterHook") return hook.find<std::string>("folder").value_or("");
  }
  return "";
}

bool writes_predictions(BaseTrainer& trainer) {
  for (const std::string& name : trainer.hooks().order()) {
    if (dynamic_cast<PredictionWriterHook*>(trainer.hooks().find(name)) != nullptr) return true;
  }
  return false;
}

}  // namespace

int predict_command(const PredictArguments& arguments) {
  const RunConfig config = load_run_config(arguments);
  check_writable(arguments.json);
  const DataConfig& data = data_to_predict(config);
  const std::string wanted = arguments.output.empty() ? configured_folder(config) : arguments.output;
  const std::string folder = wanted.empty() ? config.work_dir + "/predictions" : wanted;
  const Evaluation evaluation = open_evaluation(config, data, arguments.checkpoint, folder);
  BaseTrainer& trainer = *evaluation.run.trainer;
  if (!writes_predictions(trainer)) {
    PredictionWriterHookOptions options;
    options.folder = folder;
    trainer.add_hook(std::make_unique<PredictionWriterHook>(options));
  }
  int64_t samples = 0;
  trainer.predict(*evaluation.run.test, [&](const Batch& batch, const NamedTensors&) { samples += batch.size(); });

  nlohmann::ordered_json json;
  json["checkpoint"] = evaluation.checkpoint;
  json["update"] = evaluation.update;
  json["data"] = data.node.path();
  json["samples"] = samples;
  json["folder"] = folder;
  write_json(arguments.json, json);
  std::cout << evaluation.checkpoint << " on " << samples << " samples of " << data.node.path() << "\npredictions in "
            << folder << std::endl;
  return 0;
}

}  // namespace duet
