#include "checkpoint/weights_file.h"
#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>
#include <variant>
#include "base/detail/bits.h"
#include "base/detail/pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "io/pt_file.h"
#include "io/safetensors.h"

namespace duet {

namespace {

[[noreturn]] void refuse(const WeightsSource& source, const std::string& what) {
  throw CheckpointError(one_line("[weights] '" + source.path + "': " + what, std::string::npos));
}

// A checkpoint holds a tied tensor once; Python's load_state_dict wants it under each of its names.
StateDict under_all_names(StateDict weights, const StateDict& tied) {
  for (const auto& [further, own] : tied.values()) {
    const auto* name = std::get_if<std::string>(&own);
    if (name == nullptr || !weights.has(*name) || weights.has(further)) continue;
    weights.set(further, weights.tensor(*name));
  }
  return weights;
}

StateDict weights_of_checkpoint(const WeightsSource& source) {
  const StateDict state = CheckpointStore::load(source.path);
  const bool is_model = source.which == "model";
  const StateDict weights = state.part(is_model ? "model" : "hooks." + source.which + ".weights");
  if (!weights.tensors().empty()) return under_all_names(weights, state.part("tied"));
  std::set<std::string> averages;
  const StateDict hooks = state.part("hooks");
  for (const auto& [name, tensor] : hooks.tensors()) {
    const size_t end = name.find(".weights.");
    if (end != std::string::npos) averages.insert(name.substr(0, end));
  }
  refuse(source, "found no weights called '" + source.which +
                     "', expected 'model' or one of its averages: " + join({averages.begin(), averages.end()}));
}

// The key at the top of the file that holds the weights; empty if they are the whole of it.
std::string group_of(const WeightsSource& source, const PtFile& file) {
  const auto holds_tensors = [&tensors = file.state.tensors()](const std::string& group) {
    const auto first = tensors.lower_bound(group + ".");
    return first != tensors.end() && first->first.starts_with(group + ".");
  };
  const auto has = [&](const std::string& key) {
    return std::find(file.groups.begin(), file.groups.end(), key) != file.groups.end() && holds_tensors(key);
  };
  const bool is_average_of_mmengine = source.which == "ema" && has("ema_state_dict") && has("state_dict");
  if (source.which != "model" && !is_average_of_mmengine) {
    if (has(source.which)) return source.which;
    std::set<std::string> keys;
    for (const std::string& key : file.groups) {
      if (holds_tensors(key)) keys.insert(key);
    }
    refuse(source, "found no tensors under the key '" + source.which +
                       "', expected 'model' or one of: " + join({keys.begin(), keys.end()}));
  }
  for (const char* key : {"state_dict", "model", "model_state_dict", "module"}) {
    if (has(key)) return key;
  }
  return {};
}

StateDict weights_of_pt(const WeightsSource& source) {
  const PtFile file = read_pt(source.path);
  const std::string group = group_of(source, file);
  for (const std::string& name : file.passed_over) {
    if (group.empty() || name.starts_with(group + ".")) {
      refuse(source,
             "'" + name + "' is something that only Python can hold, expected a tensor; save the weights without it");
    }
  }
  return group.empty() ? file.state : file.state.part(group);
}

StateDict weights_of_safetensors(const WeightsSource& source) {
  if (source.which != "model") {
    refuse(source, "found one set of weights, expected one called '" + source.which + "'; leave that out");
  }
  StateDict weights;
  for (const auto& [name, tensor] : read_safetensors(source.path)) weights.set(name, tensor);
  return weights;
}

StateDict weights_of_file(const WeightsSource& source) {
  std::error_code error;
  if (!std::filesystem::exists(source.path, error)) {
    refuse(source, (error ? error.message() : "it does not exist") +
                       "; name a checkpoint folder, a safetensors file or a file of torch.save");
  }
  if (std::filesystem::is_directory(source.path, error)) return weights_of_checkpoint(source);
  try {
    return source.path.ends_with(".safetensors") ? weights_of_safetensors(source) : weights_of_pt(source);
  } catch (const DataError& failure) {
    throw CheckpointError(failure.what());
  }
}

// "model-00001-of-00003.safetensors" is a third of a model: the paths of all its files, which some count from 0; else
// the path itself.
std::vector<std::string> shards_of(const std::string& path) {
  static const Pattern shard(R"((.*\D)(\d{2,9})-of-(\d{2,9})(\.\w+))");
  const auto found = shard.groups_of(path);
  if (!found) return {path};
  const std::vector<std::string>& parts = *found;
  if (parts[2].size() != parts[3].size()) return {path};
  const int own = std::stoi(parts[2]), count = std::stoi(parts[3]);
  const auto shard_path = [&](int number) {
    std::string digits = std::to_string(number);
    digits.insert(0, parts[3].size() - digits.size(), '0');
    return parts[1] + digits + "-of-" + parts[3] + parts[4];
  };
  std::error_code ignored;
  const int first = std::filesystem::exists(shard_path(0), ignored) ? 0 : 1;
  if (own < first || own >= first + count) return {path};
  std::vector<std::string> paths;
  for (int number = first; number < first + count; ++number) paths.push_back(shard_path(number));
  return paths;
}

StateDict read_any(const WeightsSource& source) {
  StateDict weights;
  for (const std::string& path : shards_of(source.path)) {
    WeightsSource shard = source;
    shard.path = path;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored) && std::filesystem::exists(source.path, ignored))
      refuse(shard,
             "it does not exist, expected it beside '" + source.path + "', a part of the same weights; fetch it");
    const StateDict part = weights_of_file(shard);
    const auto add = [&](const std::string& name, const auto& content) {
      if (weights.has(name))
        refuse(shard, "found '" + name + "' in another part, too, expected it once; rename the file");
      weights.set(name, content);
    };
    for (const auto& [name, tensor] : part.tensors()) add(name, tensor);
    for (const auto& [name, value] : part.values()) add(name, value);
  }
  return weights;
}

template <class Rename>
StateDict renamed(const WeightsSource& source, const StateDict& weights, const Rename& rename) {
  StateDict result;
  const auto add = [&](const std::string& name, const auto& content) {
    const std::string target = rename(name);
    if (result.has(target))
      refuse(source, "'" + name + "' and another name both become '" + target + "'; change revise_keys");
    result.set(target, content);
  };
  for (const auto& [name, tensor] : weights.tensors()) add(name, tensor);
  for (const auto& [name, value] : weights.values()) add(name, value);
  return result;
}

StateDict revised(const WeightsSource& source, StateDict weights, const std::vector<NameRule>& rules) {
  for (const auto& [pattern, replacement] : rules) {
    const Pattern expression("[weights] revise_keys", pattern);
    weights = renamed(source, weights, [&](const std::string& name) {
      if (name.size() > Pattern::kLongest)
        refuse(source, "a name has more than 1000 characters: '" + name.substr(0, 60) + "...'");
      return expression.replace_in(name, replacement);
    });
  }
  return weights;
}

StateDict without_wrappers(const WeightsSource& source, StateDict weights) {
  for (bool again = !weights.tensors().empty(); again;) {
    again = false;
    for (const std::string wrapper : {"module.", "_orig_mod."}) {
      const auto wrapped = [&](const auto& entry) { return entry.first.starts_with(wrapper); };
      if (!std::all_of(weights.tensors().begin(), weights.tensors().end(), wrapped)) continue;
      again = true;
      weights = renamed(source, weights, [&](const std::string& name) {
        return name.starts_with(wrapper) ? name.substr(wrapper.size()) : name;
      });
    }
  }
  return weights;
}

}  // namespace

StateDict read_weights(const WeightsSource& given) {
  WeightsSource source = given;
  source.path = CheckpointStore::follow(given.path);
  StateDict weights = read_any(source);
  weights = source.revise_keys ? revised(source, std::move(weights), *source.revise_keys)
                               : without_wrappers(source, std::move(weights));
  if (!source.prefix.empty()) {
    StateDict part = weights.part(source.prefix);
    if (part.tensors().empty()) {
      std::set<std::string> tops;
      for (const auto& [name, tensor] : weights.tensors()) tops.insert(name.substr(0, name.find('.')));
      refuse(source, "no name begins with '" + source.prefix +
                         ".', expected one of: " + join({tops.begin(), tops.end()}) + "; change prefix");
    }
    weights = std::move(part);
  }
  if (weights.tensors().empty()) refuse(source, "it holds no tensors; name a file of weights");
  return weights;
}

std::map<std::string, std::string> aliases_of(const StateDict& weights) {
  using Place = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, at::ScalarType>;
  std::map<Place, std::string> known;
  std::map<std::string, std::string> further;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (!tensor.has_storage() || tensor.numel() == 0) continue;
    const Place place{tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
    const auto [first, is_new] = known.try_emplace(place, name);
    if (!is_new) further.emplace(name, first->second);
  }
  return further;
}

namespace {

// As Python's save_model writes tied tensors.
void write_each_once(const std::string& path, const StateDict& weights) {
  std::map<std::string, std::string> metadata = aliases_of(weights);
  NamedTensors tensors;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (!metadata.contains(name)) tensors.emplace_back(name, tensor);
  }
  metadata.emplace("format", "pt");
  write_safetensors(path, tensors, metadata);
}

}  // namespace

void write_weights(const std::string& path, const StateDict& weights) {
  try {
    if (path.ends_with(".safetensors")) {
      if (!weights.values().empty()) {
        const std::string& name = weights.values().begin()->first;
        throw ConfigError("[weights] '" + name + "' is no tensor, which safetensors cannot hold; write a .pt file");
      }
      write_each_once(path, weights);
    } else if (path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".bin")) {
      write_pt(path, weights);
    } else {
      throw ConfigError("[weights] found the file name '" + path +
                        "', expected one that ends with .safetensors, .pt, .pth or .bin; change it");
    }
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

std::string weights_hash(const StateDict& weights) {
  Xxh3 hash;
  for (const auto& [name, tensor] : weights.tensors()) {
    hash.update(name.data(), name.size());
    const at::Tensor bytes = tensor.detach().cpu().contiguous();
    if (bytes.numel() > 0) hash.update(bytes.const_data_ptr(), bytes.nbytes());
  }
  return hash.hex();
}

}  // namespace duet
