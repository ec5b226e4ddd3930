#include "cli/run_identity.h"
#include <algorithm>
#include <exception>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/bits.h"
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/device.h"
#include "data/dataset.h"
#include "distributed/communicator.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// As split by override_with().
std::string word_of(const std::string& key) { return key.find('.') == std::string::npos ? key : "'" + key + "'"; }

std::string text_of_value(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& out) {
  const auto below = [&](const std::string& word) { return path.empty() ? word : path + "." + word; };
  const bool holds_maps = value.is_array() && std::any_of(value.begin(), value.end(),
                                                          [](const Json& item) { return item.is_structured(); });
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, item] : value.items()) flatten(item, below(word_of(key)), out);
  } else if (holds_maps) {
    int64_t index = 0;
    for (const Json& item : value) flatten(item, below(std::to_string(index++)), out);
  } else {
    out[path] = text_of_value(value);
  }
}

}  // namespace

FlatConfig flat_config(const ConfigNode& root, Variables variables) {
  FlatConfig flat;
  flatten(Json::parse(config_json(root, variables)), "", flat);
  return flat;
}

std::vector<ValueDifference> differences(const FlatConfig& first, const FlatConfig& second) {
  std::map<std::string, ValueDifference> by_path;
  for (const auto& [path, value] : first) by_path[path] = {path, value, ""};
  for (const auto& [path, value] : second) {
    ValueDifference& at = by_path[path];
    at.path = path;
    at.second = value;
  }
  std::vector<ValueDifference> found;
  for (const auto& [path, values] : by_path) {
    if (values.first != values.second) found.push_back(values);
  }
  return found;
}

bool is_of_machine(const std::string& path) {
  return path.starts_with("data.") &&
         (path.ends_with(".num_workers") || path.ends_with(".prefetch") || path.ends_with(".pin_memory"));
}

std::string launch_name(const Launch& launch) { return launch.run_id.empty() ? "" : launch.from + " " + launch.run_id; }

namespace {

std::string hash_of_sample(const Dataset& data, int64_t index) {
  std::string hashes;
  const CpuSeedGuard undrawn(0);  // a dataset of one's own may draw from the process's generator
  const Batch sample = data.get({index});
  for (const auto& [name, tensor] : sample.items()) hashes += name + " " + bits_hash(tensor) + "\n";
  return hashes;
}

}  // namespace

// The first, the middle and the last sample: whether it is other data of the same size shows in one of them.
std::string data_fingerprint(const RunConfig& config, const Run& run) {
  if (run.train_data == nullptr || run.train_data->size() == 0) return "";
  const Dataset& data = *run.train_data;
  const int64_t size = data.size();
  const std::string kind = concat_text(config.train->node.child("type").text(), ", ", size, " samples");
  std::string hashes;
  try {
    for (const int64_t index : std::set<int64_t>{0, size / 2, size - 1}) {
      const std::string once = hash_of_sample(data, index);
      if (once != hash_of_sample(data, index)) return kind;  // drawn anew each time
      hashes += once;
    }
  } catch (const std::exception&) {
    return "";  // training will come to that sample, and say what is wrong with it
  }
  return concat_text(kind, ", ", xxh3_hex(hashes.data(), hashes.size()));
}

std::vector<std::string> class_names_of(const Run& run) {
  if (run.train_data == nullptr) return {};
  const std::vector<std::string> names = run.train_data->class_names();
  const auto is_text = [](const std::string& name) { return one_line(name) == name; };
  return std::all_of(names.begin(), names.end(), is_text) ? names : std::vector<std::string>();
}

RunIdentity data_everywhere(Communicator& ranks, const RunIdentity& run) {
  const Json sent = {{"classes", run.classes}, {"encoding", run.encoding}, {"data", run.data}};
  const Json said = Json::parse(ranks.broadcast(sent.dump()));
  return {.data = said["data"].get<std::string>(),
          .classes = said["classes"].get<std::vector<std::string>>(),
          .encoding = said["encoding"].get<std::string>()};
}

namespace {

bool is_below(const std::string& path, const std::string& map) { return path == map || path.starts_with(map + "."); }

// Where and how long a run runs, and what looks at it.
bool says_where(const std::string& path) {
  for (const char* map : {"work_dir", "mode", "device", "load_from", "trainer.max_steps", "trainer.max_epochs"}) {
    if (is_below(path, map)) return true;
  }
  return is_of_machine(path);
}

// What the state of an optimizer holds: not what decides how it computes.
bool is_in(const OptimizerNumbers& held, const std::string& path) {
  if (is_below(path, "optim_wrapper.paramwise_cfg")) return !held.empty();
  const std::string optimizer = "optim_wrapper.optimizer";
  if (!is_below(path, optimizer) || path == optimizer) return false;
  const std::string option = path.substr(optimizer.size() + 1);
  return held.count(option == "betas" ? "beta1" : option) != 0;
}

}  // namespace

OptimizerNumbers numbers_in(const StateDict& state) {
  const std::string before = "optimizer.configured.0.";
  OptimizerNumbers names;
  for (const auto& [name, value] : state.values()) {
    if (name.starts_with(before)) names.insert(name.substr(before.size()));
  }
  return names;
}

std::vector<ResumeDifference> resume_differences(const FlatConfig& saved, const FlatConfig& now,
                                                 const OptimizerNumbers& held) {
  std::vector<ResumeDifference> found;
  if (saved.empty()) return found;  // by a program without a config
  for (const auto& [path, there, here] : differences(saved, now)) {
    if (!says_where(path)) found.push_back({path, there, here, is_in(held, path) || path == "seed"});
  }
  return found;
}

std::string differences_text(const std::vector<ResumeDifference>& differences, const std::string& checkpoint) {
  std::string text = "the config differs from that of the run that saved '" + checkpoint + "':";
  const auto shown = [](const std::string& value) { return value.empty() ? "nothing" : value; };
  for (const ResumeDifference& found : differences) {
    text += c10::str("\n  ", found.path, ": ", shown(found.saved), " there, ", shown(found.now), " here; ",
                     found.checkpoint_wins ? "that of the checkpoint is used" : "this one is used");
    if (found.checkpoint_wins && found.path != "seed") text += " (--hyper-parameters config takes this one)";
    if (found.path == "seed") text += ": random numbers and the order of the data go on as they were";
  }
  return text;
}

void adopt_saved_values(const std::vector<ResumeDifference>& differences, const std::string& checkpoint,
                        ConfigNode& root) {
  const std::string origin = "checkpoint " + checkpoint;
  for (const ResumeDifference& found : differences) {
    if (found.checkpoint_wins && found.saved.empty()) root.override_with("~" + found.path, origin);
  }
  for (const ResumeDifference& found : differences) {  // afterwards: an empty map would take the place of what goes
    if (found.checkpoint_wins && !found.saved.empty()) root.override_with(found.path + "=" + found.saved, origin);
  }
}

}  // namespace duet
