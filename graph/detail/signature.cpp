#include "graph/detail/signature.h"
#include <functional>
#include <sstream>

namespace duet {

void append_inputs_key(const MicroBatches& micro_batches, std::vector<int64_t>& key) {
  key.push_back(static_cast<int64_t>(micro_batches.batches.size()));
  for (const Batch& batch : micro_batches.batches) {
    key.push_back(static_cast<int64_t>(batch.items().size()));
    for (const auto& [name, tensor] : batch.items()) {
      key.push_back(static_cast<int64_t>(std::hash<std::string>{}(name)));
      key.push_back(static_cast<int64_t>(tensor.scalar_type()));
      key.push_back(static_cast<int64_t>(tensor.device().type()) << 8 | (tensor.device().index() + 1));
      key.push_back(tensor.dim());
      key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
      key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
    }
  }
}

std::string describe(const MicroBatches& micro_batches) {
  std::ostringstream out;
  for (std::size_t b = 0; b < micro_batches.batches.size(); ++b) {
    if (b > 0) out << " + ";
    bool first = true;
    for (const auto& [name, tensor] : micro_batches.batches[b].items()) {
      out << (first ? "" : ", ") << name << " " << c10::toString(tensor.scalar_type()) << tensor.sizes();
      first = false;
    }
  }
  return out.str();
}

}  // namespace duet
