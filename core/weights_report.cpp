#include <algorithm>
#include <map>
#include <set>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "core/task.h"

namespace duet {

namespace {

std::string kind_of(const at::Tensor& tensor) { return c10::str(tensor.scalar_type(), tensor.sizes()); }

// Floating-point types convert into one another, as PyTorch's load_state_dict does it.
bool converts(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point());
}

struct Copy {
  at::Tensor from, to;
};

// The further names of each tensor, by the one that the task gives.
std::map<std::string, std::vector<std::string>> further_names_of(const Task& task) {
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& [further, own] : task.tied_names()) names[own].push_back(further);
  return names;
}

// What is there for the tensor `name`, under any of its names; nullptr if nothing is. Values that differ between the
// names are reported: the model can hold one of them only.
const at::Tensor* find_tensor(const StateDict& weights, const std::string& name,
                              const std::vector<std::string>& further, WeightsReport& report) {
  const at::Tensor* found = nullptr;
  if (const auto own = weights.tensors().find(name); own != weights.tensors().end()) found = &own->second;
  for (const std::string& other_name : further) {
    const auto other = weights.tensors().find(other_name);
    if (other == weights.tensors().end()) continue;
    if (found == nullptr) {
      found = &other->second;
    } else if (!same_bits(*found, other->second)) {
      report.untied.push_back(other_name);
    }
  }
  return found;
}

constexpr size_t kMaxNames = 50;

// The report, and what is to be copied.
WeightsReport match(const Task& task, const StateDict& weights, bool strict, std::vector<Copy>& copies) {
  WeightsReport report;
  std::set<std::string> known;
  const std::vector<std::string> unsaved = task.unsaved_buffers();
  auto further = further_names_of(task);
  for (const auto& [name, tensor] : named_tensors(task)) {
    known.insert(name);
    known.insert(further[name].begin(), further[name].end());
    ++report.expected;
    const at::Tensor* const found = find_tensor(weights, name, further[name], report);
    if (found == nullptr) {
      const bool is_optional = name.ends_with("num_batches_tracked") || std::ranges::count(unsaved, name) > 0;
      if (!is_optional) report.missing.push_back(name);
      continue;
    }
    const at::Tensor& saved = *found;
    if (saved.sizes() != tensor.sizes() || !converts(saved, tensor)) {
      report.mismatched.push_back({name, kind_of(saved), kind_of(tensor)});
      continue;
    }
    if (saved.scalar_type() != tensor.scalar_type())
      report.converted.push_back({name, kind_of(saved), kind_of(tensor)});
    ++report.loaded;
    copies.push_back({saved, tensor});
  }
  for (const auto& entry : weights.tensors()) {
    if (known.count(entry.first) == 0) report.unexpected.push_back(entry.first);
  }
  if (strict && !report.exact()) {
    throw CheckpointError("[weights] these are of another model: " + report.text(kMaxNames) +
                          "\nload what was saved from this model; of weights alone, strict: false loads what fits");
  }
  return report;
}

std::vector<std::string> texts_of(const std::vector<WeightsReport::Difference>& differences) {
  std::vector<std::string> texts;
  for (const auto& [name, found, expected] : differences)
    texts.push_back(c10::str(name, " (", found, " there, ", expected, " in the model)"));
  return texts;
}

}  // namespace

NamedTensors named_tensors(const Task& task) {
  NamedTensors tensors = task.named_parameters();
  for (auto& buffer : task.named_buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

StateDict weights_of(const Task& task) {
  StateDict weights;
  for (const auto& [name, tensor] : named_tensors(task)) weights.set(name, tensor.detach());
  return weights;
}

std::string WeightsReport::text(size_t max_names) const {
  std::string text = c10::str(loaded, " of ", expected, " tensors");
  const auto add_line = [&](const char* title, const std::vector<std::string>& items) {
    if (!items.empty()) text += c10::str("\n  ", title, ": ", join_first(items, max_names));
  };
  add_line("missing there", missing);
  add_line("unknown to the model", unexpected);
  add_line("of another shape or type, not loaded", texts_of(mismatched));
  add_line("tied in the model, but another value there, not loaded", untied);
  add_line("converted", texts_of(converted));
  return text;
}

WeightsReport match_weights(const Task& task, const StateDict& weights, bool strict) {
  std::vector<Copy> copies;
  return match(task, weights, strict, copies);
}

WeightsReport load_matching_weights(Task& task, const StateDict& weights, bool strict) {
  std::vector<Copy> copies;
  const WeightsReport report = match(task, weights, strict, copies);
  if (copies.empty()) {
    throw CheckpointError("[weights] none of them fits the model: " + report.text(kMaxNames) +
                          "\nload the weights of this model, or set prefix or revise_keys if only the names differ");
  }
  const at::NoGradGuard no_grad;
  for (const Copy& copy : copies) copy.to.copy_(copy.from);
  return report;
}

}  // namespace duet
