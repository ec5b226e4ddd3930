#include "cli/step_hashes.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "core/task.h"
#include "io/bounded_json.h"
#include "io/file_io.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void StepHashHook::after_train_iter(TrainContext& context) {
  if (static_cast<int64_t>(steps_.size()) >= limit_) return;
  StepHashes hashes{context.progress.step, {}};
  const auto add = [&hashes](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) hashes.tensors.emplace_back(name, bits_hash(tensor.detach()));
  };
  add("loss", context.step.loss());
  for (const auto& [name, value] : context.step.result->log) add("logged value '" + name + "'", value);
  const NamedTensors weights = context.task.named_parameters();
  for (auto weight = weights.rbegin(); weight != weights.rend(); ++weight) {
    add("gradient of '" + weight->first + "'", weight->second.grad());
  }
  add("gradient norm", context.step.result->grad_norm);
  for (const auto& [name, weight] : weights) add("weight '" + name + "'", weight);
  for (const auto& [name, buffer] : context.task.named_buffers()) add("buffer '" + name + "'", buffer);
  steps_.push_back(std::move(hashes));
}

std::optional<HashDifference> first_difference(const std::vector<StepHashes>& a, const std::vector<StepHashes>& b) {
  const std::size_t both = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < both; ++i) {
    HashDifference found{a[i].step, "", 0, static_cast<int64_t>(std::max(a[i].tensors.size(), b[i].tensors.size()))};
    for (std::size_t t = 0; t < static_cast<std::size_t>(found.compared); ++t) {
      const bool in_both = t < a[i].tensors.size() && t < b[i].tensors.size();
      if (in_both && a[i].tensors[t] == b[i].tensors[t]) continue;
      if (found.differing++ == 0) found.tensor = (t < a[i].tensors.size() ? a : b)[i].tensors[t].first;
    }
    if (found.differing > 0) return found;
  }
  if (a.size() == b.size()) return std::nullopt;
  const std::vector<StepHashes>& longer = a.size() > b.size() ? a : b;
  return HashDifference{longer[both].step, "the step itself, which one run does not have", 1, 1};
}

Json to_json(const std::vector<StepHashes>& steps) {
  Json json;
  json["steps"] = Json::array();
  for (const StepHashes& hashes : steps) {
    Json tensors = Json::object();
    for (const auto& [name, hash] : hashes.tensors) tensors[name] = hash;
    json["steps"].push_back({{"step", hashes.step}, {"tensors", std::move(tensors)}});
  }
  return json;
}

Json to_json(const std::optional<HashDifference>& difference) {
  if (!difference) return nullptr;
  return {{"step", difference->step},
          {"tensor", difference->tensor},
          {"differing", difference->differing},
          {"compared", difference->compared}};
}

std::vector<StepHashes> read_step_hashes(const std::string& path) {
  constexpr uint64_t kMaxRecord = uint64_t{1} << 30;
  const auto refuse = [&](const std::string& reason) {
    throw DataError("[compare] " + path + " holds no hashes of steps (" + one_line(reason) +
                    "); give a file that --record has written");
  };
  try {
    std::vector<StepHashes> steps;
    const auto json = parse_json<Json>(file_io::read_text(path, kMaxRecord), "it");
    for (const Json& item : json.at("steps")) {
      StepHashes hashes{item.at("step").get<int64_t>(), {}};
      const Json& tensors = item.at("tensors");
      for (const auto& [name, hash] : tensors.items()) {
        hashes.tensors.emplace_back(name, hash.get<std::string>());
      }
      steps.push_back(std::move(hashes));
    }
    return steps;
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  } catch (const MalformedFile& error) {
    refuse(error.what);
  } catch (const file_io::IoError& error) {
    throw DataError(std::string("[compare] ") + error.what() + "; give a file that --record has written");
  }
  return {};
}

}  // namespace duet
