#include <duet/core/comm/gather_state.h>

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <sstream>
#include <string>

namespace duet {

namespace {

// For each tensor a line with its name and size, and then its bytes.
std::string packed(const StateDict& state) {
  std::string bytes;
  for (const auto& [name, tensor] : state.tensors()) {
    const at::Tensor values = tensor.contiguous();
    bytes += c10::str(name, " ", values.nbytes(), "\n");
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return bytes;
}

StateDict unpacked(const std::string& bytes) {
  StateDict state;
  std::istringstream in(bytes);
  std::string name;
  int64_t size = 0;
  while (in >> name >> size) {
    in.get();
    at::Tensor values = at::empty({size}, at::kByte);
    in.read(static_cast<char*>(values.mutable_data_ptr()), size);
    state.set(name, values);
  }
  return state;
}

}  // namespace

std::vector<StateDict> gather_state(Communicator& communicator, const StateDict& own) {
  std::vector<StateDict> all;
  for (const std::string& bytes : communicator.all_gather(packed(own))) all.push_back(unpacked(bytes));
  return all;
}

}  // namespace duet
