#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>
#include "core/train_context.h"

// What several hooks share. Private to hooks/.
namespace duet {

// "[who] found no <what> '<name>', expected one of a, b"; `known` holds pairs, names first.
template <class Pairs>
std::string not_found(const char* who, const char* what, const std::string& name, const Pairs& known) {
  std::string names;
  for (const auto& entry : known) names += (names.empty() ? "" : ", ") + entry.first;
  return std::string("[") + who + "] found no " + what + " '" + name + "', expected one of " + names;
}

// Makes the folder that `who` writes to if it is missing. Throws ConfigError if it cannot be made.
void make_output_folder(const char* who, const std::string& folder);

// The folder that the hook class `who` writes to, made if it is missing: `wanted`, or <work_dir>/<name> if that is
// empty. Throws ConfigError if there is no work_dir then, or the folder cannot be made.
std::string output_folder(const char* who, const std::string& wanted, const TrainContext& context, const char* name);

// What tells apart what every rank writes: "rank-1"; empty where there is one process.
std::string rank_name(const TrainContext& context);

// Null if there is none of that name.
const at::Tensor* find(const NamedTensors& tensors, const std::string& name);

// Without the graph that it came from; no operator runs where there is none.
inline at::Tensor detached(const at::Tensor& tensor) { return tensor.requires_grad() ? tensor.detach() : tensor; }
// The numbers of tensors of any kind, one after the other, as float64 on the device of the last one; undefined for
// none.
at::Tensor numbers_of(const std::vector<at::Tensor>& tensors);
// Of at least one value; the mean of the two in the middle where their number is even.
double median_of(std::vector<double> values);

// Seconds of the steady clock.
double steady_seconds();

// Of the parameters; the CPU if there are none.
at::Device device_of(const Task& task);

// A number, or "nan", "inf", "-inf": JSON has none of these.
nlohmann::ordered_json json_number(double value);
// On one line; what is not UTF-8 is replaced.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace duet
