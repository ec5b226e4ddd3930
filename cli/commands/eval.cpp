#include <c10/util/StringUtil.h>
#include <duet/cli/build.h>
#include <duet/cli/commands/commands.h>
#include <duet/cli/report.h>
#include <duet/core/checkpoint.h>
#include <duet/core/device.h>
#include <duet/core/error.h>
#include <duet/core/log.h>
#include <nlohmann/json.hpp>

#include <iostream>

namespace duet {

namespace {

// The folder that --checkpoint means.
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

// What custom hooks bring into an evaluation: an average of the weights to evaluate with.
void load_custom_hooks(const RunConfig& config, const StateDict& checkpoint, BaseTrainer& trainer) {
  if (config.custom_hooks.empty()) return;
  for (const std::string& name : trainer.hooks().order()) {
    const StateDict state = checkpoint.part("hooks." + name);
    if (state.tensors().empty() && state.values().empty()) {
      log_warning("the checkpoint holds no state of hook '" + name + "', which has no effect here");
    } else {
      trainer.hooks().find(name)->load_state_dict(state);
      log_info("hook '" + name + "' has its state from the checkpoint");
    }
  }
}

}  // namespace

int eval_command(const EvalArguments& arguments) {
  const RunConfig config = load_run_config(arguments);
  check_writable(arguments.json);
  const std::optional<DataConfig>& data = config.test ? config.test : config.val;
  if (!data) config.root.child("data").fail("test", "and data.val are both missing; add one to evaluate on");

  const std::string path = find_checkpoint(config, arguments.checkpoint);
  const StateDict state = CheckpointStore::load(path);
  Run run;
  run.train_data = build_dataset(config.train);  // models may ask it for their sizes
  run.test_data = build_dataset(data);
  check_same_characters(run.train_data.get(), run.test_data.get(), *data);
  run.test = build_loader(run.test_data, *data, config.seed, parse_device(config.trainer.device));
  LoopOptions loop;
  build_trainer(config, config.mode, loop, run);
  run.trainer->load_weights(state.part("model"));
  add_custom_hooks(config, run);
  load_custom_hooks(config, state, *run.trainer);
  const MetricValues metrics = run.trainer->test(*run.test);

  nlohmann::ordered_json json;
  json["checkpoint"] = path;
  json["update"] = state.integer("trainer.update");
  json["metrics"] = metrics;
  write_json(arguments.json, json);
  std::cout << path << " on " << run.test_data->size() << " samples of " << data->node.path() << '\n';
  for (const auto& [name, value] : metrics) std::cout << "  " << name << " " << value << '\n';
  std::cout.flush();
  return 0;
}

}  // namespace duet
