#include <duet/cli/commands/commands.h>
#include <duet/cli/evaluation.h>
#include <duet/cli/report.h>
#include <nlohmann/json.hpp>

#include <iostream>

namespace duet {

int eval_command(const EvalArguments& arguments) {
  RunConfig config = load_run_config(arguments);
  check_writable(arguments.json);
  if (config.test) config.metrics = config.test_metrics;
  const std::optional<DataConfig>& data = config.test ? config.test : config.val;
  if (!data) config.root.child("data").fail("test", "and data.val are both missing; add one to evaluate on");
  const Evaluation evaluation = open_evaluation(config, *data, arguments.checkpoint);
  const MetricValues metrics = evaluation.run.trainer->test(*evaluation.run.test);

  nlohmann::ordered_json json;
  json["checkpoint"] = evaluation.checkpoint;
  json["update"] = evaluation.update ? nlohmann::ordered_json(*evaluation.update) : nlohmann::ordered_json();
  json["metrics"] = metrics;
  write_json(arguments.json, json);
  std::cout << evaluation.checkpoint << " on " << evaluation.run.test_data->size() << " samples of "
            << data->node.path() << '\n';
  for (const auto& [name, value] : metrics) std::cout << "  " << name << " " << value << '\n';
  std::cout.flush();
  return 0;
}

}  // namespace duet
