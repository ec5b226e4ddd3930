#include "core/tied_names.h"
#include <unordered_map>
#include <utility>
#include "core/task.h"

namespace duet {

namespace {

// The name of each tensor's first item. Undefined tensors are all one object and are not tied by that.
class FirstNames {
 public:
  // The first name of this tensor: `name` itself if there was none before.
  const std::string& of(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return name;
    return names_.try_emplace(tensor.unsafeGetTensorImpl(), name).first->second;
  }

 private:
  std::unordered_map<const void*, std::string> names_;
};

}  // namespace

NamedTensors each_once(NamedTensors items) {
  FirstNames first;
  std::erase_if(items, [&](const auto& item) { return first.of(item.first, item.second) != item.first; });
  return items;
}

std::map<std::string, std::string> further_names(const NamedTensors& items) {
  FirstNames first;
  std::map<std::string, std::string> further;
  for (const auto& [name, tensor] : items) {
    const std::string& own = first.of(name, tensor);
    if (own != name) further.emplace(name, own);
  }
  return further;
}

std::map<std::string, std::string> tied_names_of(const Task& task) {
  const auto* tied = dynamic_cast<const TiedNames*>(&task);
  return tied == nullptr ? std::map<std::string, std::string>() : tied->tied_names();
}

}  // namespace duet
