#include "distributed/detail/packed_state.h"
#include <exception>
#include <utility>
#include <variant>
#include <vector>
#include <ATen/core/ivalue.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

StateValue value_of(const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  return value.toStringRef();
}

}  // namespace

std::string pack_state(const StateDict& state) {
  std::vector<c10::IValue> items;  // names and contents in turn
  for (const auto& [name, tensor] : state.tensors()) {
    const at::Tensor plain = tensor.detach();
    const bool is_part = plain.storage().nbytes() > plain.nbytes();  // the pickler writes all of the memory
    items.insert(items.end(), {name, is_part ? plain.clone() : plain});
  }
  for (const auto& [name, value] : state.values()) {
    items.emplace_back(name);
    std::visit([&](const auto& content) { items.emplace_back(content); }, value);
  }
  const std::vector<char> bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(std::move(items)));
  return {bytes.begin(), bytes.end()};
}

StateDict unpack_state(const std::string& bytes) try {
  const c10::IValue read = torch::jit::pickle_load({bytes.begin(), bytes.end()});
  const auto& items = read.toTupleRef().elements();
  StateDict state;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const std::string& name = items[i].toStringRef();
    const c10::IValue& content = items.at(i + 1);
    content.isTensor() ? state.set(name, content.toTensor()) : state.set(name, value_of(content));
  }
  return state;
} catch (const std::exception& error) {
  throw PeerError(c10::str("[Communicator] another rank sent a state that cannot be read (", first_line(error),
                           "); start the same program on all ranks"));
}

}  // namespace duet
