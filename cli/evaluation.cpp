#include "cli/evaluation.h"
#include <filesystem>
#include <set>
#include <system_error>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "cli/ranks.h"
#include "core/weights_report.h"
#include "distributed/communicator.h"
#include "hooks/ema_hook.h"
#include "hooks/prediction_writer_hook.h"

namespace duet {

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
  std::set<std::string> averages;
  const StateDict hooks = checkpoint.part("hooks");
  for (const auto& [name, tensor] : hooks.tensors()) {
    const std::size_t end = name.find(".weights.");
    if (end != std::string::npos && trainer.hooks().find(name.substr(0, end)) == nullptr)
      averages.insert(name.substr(0, end));
  }
  for (const std::string& name : averages) {
    log_warning(c10::str(
        "the checkpoint holds averages of the weights, '", name,
        "', but the config has no hook of that name: ", "the plain weights are used; add custom_hooks=[{type: EMAHook",
        name == "ema" ? "" : ", name: " + name, "}] to use the averages"));
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

}  // namespace

std::string find_checkpoint(const RunConfig& config, const std::string& wanted) {
  if (!wanted.empty() && wanted != "best" && wanted != "latest") {
    return is_weights_file(wanted) ? wanted : CheckpointStore::find(wanted);
  }
  const std::string root = CheckpointStore::root_of(config.work_dir);
  const CheckpointStore store(root);
  if (wanted != "latest") {
    if (const std::optional<std::string> best = store.find_best()) return *best;
    if (wanted == "best") {
      throw CheckpointError("[duet] there is no best checkpoint in '" + root +
                            "'; train with save_best, or name another one");
    }
  }
  if (const std::optional<std::string> latest = store.find_latest()) return *latest;
  throw CheckpointError("[duet] there is no checkpoint in '" + root + "'; train first, or name one with --checkpoint");
}

Run build_evaluation(const RunConfig& config, const DataConfig& data, const std::string& output) {
  Run run;
  run_on_all_ranks(config.communicator(), [&] {
    run.train_data = build_dataset(config.train);  // models may ask it for their sizes
    run.test_data = build_dataset(data);
    check_same_characters(run.train_data.get(), run.test_data.get(), data);
    run.test = build_loader(run.test_data, data, config);
  });
  check_same_size(config.communicator(), data.node.path(), run.test_data->size());
  build_trainer(config, config.mode, limited_loop(config, run), run);
  RunConfig untrained = config;
  untrained.schedules.clear();
  run.steps_per_epoch = 1;  // what counts epochs counts on a length, though nothing is trained here
  HookContext context = hook_context(untrained, run);
  context.evaluates = true;
  context.metrics.clear();  // those of a test may be others
  context.output = output;
  run_on_all_ranks(config.communicator(), [&] { add_hooks(config.hooks, context, *run.trainer); });
  return run;
}

Evaluation open_evaluation(const RunConfig& config, const DataConfig& data, const std::string& checkpoint,
                           const std::string& output) {
  Evaluation evaluation;
  evaluation.checkpoint = from_main(config.communicator(), [&] { return find_checkpoint(config, checkpoint); });
  const bool weights_alone = is_weights_file(evaluation.checkpoint);
  StateDict state;
  run_on_all_ranks(config.communicator(), [&] {
    if (weights_alone) return;
    state = CheckpointStore::load(evaluation.checkpoint);
    evaluation.step = state.integer("trainer.step");
  });
  evaluation.run = build_evaluation(config, data, output);
  BaseTrainer& trainer = *evaluation.run.trainer;
  run_on_all_ranks(config.communicator(), [&] {
    if (weights_alone) {
      load_weights_file(evaluation.checkpoint, trainer.task());
      load_hooks({}, trainer);
    } else {
      trainer.load_weights(state.part("model"), evaluation.step);
      load_hooks(state, trainer);
      warn_of_unused_averages(state, trainer);
    }
  });
  return evaluation;
}

void add_prediction_writer(const std::string& folder, BaseTrainer& trainer) {
  for (const std::string& name : trainer.hooks().order()) {
    if (dynamic_cast<PredictionWriterHook*>(trainer.hooks().find(name)) != nullptr) return;
  }
  PredictionWriterHookOptions options;
  options.folder = folder;
  trainer.add_hook(std::make_unique<PredictionWriterHook>(options));
}

}  // namespace duet
