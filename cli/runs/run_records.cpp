#include "cli/runs/run_records.h"
#include <exception>
#include <filesystem>
#include <system_error>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/log.h"
#include "cli/environment.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "graph/graph_trainer.h"

namespace duet {

namespace {

void write_record(const std::string& path, const nlohmann::ordered_json& json) {
  try {
    write_json(path, json);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

}  // namespace

void write_run_environment(const std::string& work_dir) {
  std::error_code ignored;
  std::filesystem::remove(work_dir + "/graph.json", ignored);
  write_record(work_dir + "/environment.json", environment_json());
}

void write_graph_coverage(const std::string& work_dir, const GraphTrainer& trainer) {
  const int64_t replays = trainer.replays(), eager = trainer.eager_steps();
  nlohmann::ordered_json json = {{"replays", replays}, {"eager_steps", eager}};
  if (replays + eager > 0)
    json["replayed"] =
        number_text(100.0 * static_cast<double>(replays) / static_cast<double>(replays + eager), "%.1f %%");
  json["signatures"] = nlohmann::ordered_json::array();
  for (const SignatureReport& signature : trainer.report()) {
    json["signatures"].push_back(signature_json(signature));
  }
  write_record(work_dir + "/graph.json", json);
}

}  // namespace duet
