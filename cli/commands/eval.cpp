#include <iostream>
#include <nlohmann/json.hpp>
#include "cli/commands/commands.h"
#include "cli/evaluation.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "distributed/communicator.h"

namespace duet {

namespace {

int evaluate(const Arguments& arguments, RunConfig& config) {
  run_on_main(config.communicator(), [&] { check_writable(arguments.json); });
  if (config.test) config.metrics = config.test_metrics;
  const std::optional<DataConfig>& data = config.test ? config.test : config.val;
  if (!data) config.root.child("data").fail("test", "and data.val are both missing; add one to evaluate on");
  const Evaluation evaluation = open_evaluation(config, *data, arguments.checkpoint);
  const MetricValues metrics = evaluation.run.trainer->test(*evaluation.run.test);
  if (!config.is_main()) return 0;

  nlohmann::ordered_json json;
  json["checkpoint"] = evaluation.checkpoint;
  json["step"] = evaluation.step ? nlohmann::ordered_json(*evaluation.step) : nlohmann::ordered_json();
  json["metrics"] = metrics;
  write_json(arguments.json, json);
  std::cout << evaluation.checkpoint << " on " << evaluation.run.test_data->size() << " samples of "
            << data->node.path() << '\n';
  for (const auto& [name, value] : metrics) std::cout << "  " << name << " " << value << '\n';
  std::cout.flush();
  return 0;
}

}  // namespace

int eval_command(const Arguments& arguments) {
  return run_on_ranks(
      arguments.launch, [&] { return load_run_config(arguments); },
      [&](RunConfig& config) { return evaluate(arguments, config); });
}

}  // namespace duet
