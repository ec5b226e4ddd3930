#include "hooks/detail/published_weights.h"
#include <filesystem>
#include <set>
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "core/task.h"

namespace duet {

namespace {

// Of a single key without it.
StateDict below(const std::vector<std::string>& keys, const StateDict& state) {
  StateDict found;
  for (const auto& [name, tensor] : state.tensors()) {
    for (const std::string& key : keys) {
      if (!name.starts_with(key + ".")) continue;
      found.set(keys.size() == 1 ? name.substr(key.size() + 1) : name, tensor);
      break;
    }
  }
  return found;
}

// "model", "optimizer", "hooks.ema.weights"
std::vector<std::string> publishable(const StateDict& state) {
  std::set<std::string> names;
  for (const auto& entry : state.tensors()) {
    const std::string& name = entry.first;
    std::size_t end = name.find('.');
    for (int more = name.starts_with("hooks.") ? 2 : 0; more > 0 && end != std::string::npos; --more) {
      end = name.find('.', end + 1);
    }
    if (end != std::string::npos) names.insert(name.substr(0, end));
  }
  return {names.begin(), names.end()};
}

void warn_of_empty_keys(const std::vector<std::string>& keys, const StateDict& state, const std::string& checkpoint) {
  std::vector<std::string> empty;
  for (const std::string& key : keys) {
    if (below({key}, state).tensors().empty()) empty.push_back(key);
  }
  if (empty.empty()) return;
  log_warning(c10::str("[CheckpointHook] '", checkpoint, "' has nothing below the published_keys ",
                       c10::Join(", ", empty), "; correct them; ",
                       known_and_nearest(empty.front(), publishable(state))));
}

}  // namespace

void publish_weights(const std::vector<std::string>& keys, const std::map<std::string, std::string>& checkpoints,
                     const TrainContext& context) {
  const std::string folder = context.work_dir + "/published";
  for (const auto& [name, checkpoint] : checkpoints) {
    const StateDict state = CheckpointStore::load(checkpoint);
    warn_of_empty_keys(keys, state, checkpoint);
    const StateDict weights = below(keys, state);
    if (weights.tensors().empty()) continue;
    std::filesystem::create_directories(folder);
    const std::string stem = concat_text(folder, "/", name, "-", weights_hash(weights).substr(0, 8));
    write_weights(stem + ".safetensors", weights);
    const std::string model = context.task.write_model(stem, weights);
    log_info("published '" + stem + ".safetensors'" + (model.empty() ? "" : " and '" + model + "'"));
  }
}

}  // namespace duet
