#include "hooks/detail/model_summary.h"
#include <algorithm>
#include <vector>
#include <c10/util/StringUtil.h>
#include "core/task.h"
#include "hooks/detail/log_text.h"

namespace duet {

namespace {

struct Size {
  int64_t parameters = 0, trainable = 0, bytes = 0;

  void add(const at::Tensor& parameter) {
    parameters += parameter.numel();
    if (parameter.requires_grad()) trainable += parameter.numel();
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
};

struct Part {
  std::string name, type;
  Size size;
};

std::string type_of(const std::vector<ModuleInfo>& modules, const std::string& path) {
  const auto found = std::find_if(modules.begin(), modules.end(), [&](const ModuleInfo& m) { return m.path == path; });
  if (found == modules.end()) return {};
  const std::string& type = found->type;
  return type.size() > 4 && type.ends_with("Impl") ? type.substr(0, type.size() - 4) : type;
}

// Models often hang below one module: parts are those of the first level that has several.
std::size_t common_prefix(const NamedTensors& parameters) {
  std::size_t length = 0;
  while (!parameters.empty()) {
    const std::string& first = parameters.front().first;
    const std::size_t dot = first.find('.', length);
    if (dot == std::string::npos) break;
    const std::string prefix = first.substr(0, dot + 1);
    if (!std::all_of(parameters.begin(), parameters.end(),
                     [&](const auto& p) { return p.first.starts_with(prefix); })) {
      break;
    }
    length = dot + 1;
  }
  return length;
}

std::vector<Part> parts_of(const NamedTensors& parameters, const std::vector<ModuleInfo>& modules) {
  const std::size_t prefix = common_prefix(parameters);
  std::vector<Part> parts;
  for (const auto& [name, parameter] : parameters) {
    const std::string path = name.substr(0, name.find('.', prefix));
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.name == path; });
    Part& part = found != parts.end() ? *found : parts.emplace_back(Part{path, type_of(modules, path), {}});
    part.size.add(parameter);
  }
  return parts;
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

std::string right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string row(const Part& part, std::size_t name_width, std::size_t type_width, std::size_t count_width) {
  const Size& size = part.size;
  std::string text = "  " + padded(part.name, name_width) + "  " + padded(part.type, type_width) + "  " +
                     right(std::to_string(size.parameters), count_width);
  if (size.trainable == 0) text += "  frozen";
  if (size.trainable > 0 && size.trainable < size.parameters) text += c10::str("  ", size.trainable, " trainable");
  return text;
}

}  // namespace

std::string model_summary(const Task& task) {
  const NamedTensors parameters = task.named_parameters();
  Size all;
  for (const auto& entry : parameters) all.add(entry.second);
  int64_t buffers = 0;
  for (const auto& entry : task.named_buffers()) buffers += entry.second.numel();

  std::string text =
      c10::str("model: ", all.parameters, " parameters (", formatted("%.1f", static_cast<double>(all.bytes) / 1048576),
               " MiB), ", all.trainable, " trainable");
  if (buffers > 0) text += c10::str(", ", buffers, " values in buffers");
  const std::vector<Part> parts = parts_of(parameters, task.modules());
  std::size_t name_width = 0, type_width = 0, count_width = 0;
  for (const Part& part : parts) {
    name_width = std::max(name_width, part.name.size());
    type_width = std::max(type_width, part.type.size());
    count_width = std::max(count_width, std::to_string(part.size.parameters).size());
  }
  for (const Part& part : parts) text += "\n" + row(part, name_width, type_width, count_width);
  return text;
}

}  // namespace duet
