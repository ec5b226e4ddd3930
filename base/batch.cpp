#include "base/batch.h"
#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

Batch::Batch(std::initializer_list<std::pair<std::string, at::Tensor>> items) {
  for (const auto& [name, tensor] : items) set(name, tensor);
}

const at::Tensor& Batch::operator[](std::string_view name) const& {
  for (const auto& item : items_) {
    if (item.first == name) return item.second;
  }
  throw DataError(c10::str(
      "[Batch] there is no tensor '", name, "'; this batch holds: ", join(keys_in(items_)),
      "; read one of these, or let the dataset yield it (in a config by rename: {<one of these>: ", name, "})"));
}

bool Batch::has(std::string_view name) const {
  return std::ranges::find(items_, name, &NamedTensors::value_type::first) != items_.end();
}

void Batch::set(std::string name, at::Tensor tensor) {
  require<DataError>(tensor.defined(), "[Batch] tensor '" + name + "' is undefined; give it a value");
  const auto known = std::ranges::find(items_, name, &NamedTensors::value_type::first);
  if (known == items_.end()) {
    items_.emplace_back(std::move(name), std::move(tensor));
  } else {
    known->second = std::move(tensor);
  }
}

int64_t Batch::size() const {
  if (items_.empty()) return 0;
  const at::Tensor& first = items_.front().second;
  return first.dim() == 0 ? 1 : first.sym_size(0).expect_int();  // a jagged tensor has no other sizes
}

Batch Batch::to(at::Device device, bool non_blocking) const {
  return mapped([&](const at::Tensor& tensor) {
    return tensor.device() == device ? tensor : tensor.to(tensor.options().device(device), non_blocking);
  });
}

}  // namespace duet
