#include <duet/cli/evaluation.h>

#include <duet/core/checkpoint.h>
#include <duet/core/device.h>
#include <duet/core/error.h>
#include <duet/core/log.h>
#include <duet/hooks/ema_hook.h>

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

}  // namespace

std::string find_checkpoint(const RunConfig& config, const std::string& wanted) {
  if (!wanted.empty() && wanted != "best" && wanted != "latest") return wanted;
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
  run.train_data = build_dataset(config.train);  // models may ask it for their sizes
  run.test_data = build_dataset(data);
  check_same_characters(run.train_data.get(), run.test_data.get(), data);
  run.test = build_loader(run.test_data, data, config.seed, parse_device(config.trainer.device));
  build_trainer(config, config.mode, limited_loop(config, run), run);
  RunConfig untrained = config;
  untrained.schedules.clear();
  run.updates_per_epoch = 1;  // what counts epochs counts on a length, though nothing is trained here
  HookContext context = hook_context(untrained, run);
  context.evaluates = true;
  context.metrics.clear();  // those of a test may be others
  context.output = output;
  add_hooks(config, context, run);
  return run;
}

Evaluation open_evaluation(const RunConfig& config, const DataConfig& data, const std::string& checkpoint,
                           const std::string& output) {
  Evaluation evaluation;
  evaluation.checkpoint = find_checkpoint(config, checkpoint);
  const StateDict state = CheckpointStore::load(evaluation.checkpoint);
  evaluation.update = state.integer("trainer.update");
  evaluation.run = build_evaluation(config, data, output);
  evaluation.run.trainer->load_weights(state.part("model"), evaluation.update);
  load_hooks(state, *evaluation.run.trainer);
  return evaluation;
}

}  // namespace duet
