#include "hooks/detail/shared.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "core/task.h"

namespace duet {

using Json = nlohmann::ordered_json;

void make_output_folder(const char* who, const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (!failed) return;
  throw ConfigError(c10::str("[", who, "] found folder '", folder, "' that cannot be made (", failed.message(),
                             "), expected a writable place; change work_dir, or the folder given here"));
}

std::string output_folder(const char* who, const std::string& wanted, const TrainContext& context, const char* name) {
  if (wanted.empty() && context.work_dir.empty()) {
    throw ConfigError(c10::str(
        "[", who, "] found no work_dir, expected a folder to write to; set work_dir, or the folder of this hook"));
  }
  std::string folder = wanted.empty() ? context.work_dir + "/" + name : wanted;
  make_output_folder(who, folder);
  return folder;
}

std::string rank_name(const TrainContext& context) {
  if (context.communicator->world_size() <= 1) return {};
  return "rank-" + std::to_string(context.communicator->rank());
}

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& item) { return item.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

at::Tensor numbers_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) {
    const bool same_type = tensor.scalar_type() == tensors.front().scalar_type();  // else joining them may lose digits
    flat.push_back(
        tensor.detach().reshape({-1}).to(tensors.back().device(), same_type ? tensor.scalar_type() : at::kDouble));
  }
  return at::cat(flat).to(at::kDouble);
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

at::Device device_of(const Task& task) {
  const NamedTensors parameters = task.named_parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().second.device();
}

Json json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::string json_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace duet
