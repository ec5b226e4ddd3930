#include <c10/util/StringUtil.h>
#include <duet/cli/build.h>
#include <duet/cli/commands/commands.h>
#include <duet/cli/report.h>
#include <duet/core/checkpoint.h>
#include <duet/core/device.h>
#include <duet/core/error.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>

namespace duet {

namespace {

// The folder that --checkpoint means.
std::string find_checkpoint(const RunConfig& config, const std::string& wanted) {
  const std::string root = config.work_dir + "/checkpoints";
  if (!wanted.empty() && wanted != "best" && wanted != "latest") return wanted;
  if (wanted != "latest") {
    std::string best;
    std::ifstream file(root + "/best");
    if (file >> best && std::filesystem::is_directory(root + "/" + best)) return root + "/" + best;
    if (wanted == "best") {
      throw CheckpointError("[duet] there is no best checkpoint in '" + root +
                            "'; train with save_best, or name another one");
    }
  }
  if (const std::optional<std::string> latest = CheckpointStore(root).find_latest()) return *latest;
  throw CheckpointError("[duet] there is no checkpoint in '" + root + "'; train first, or name one with --checkpoint");
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
