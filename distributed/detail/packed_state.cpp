#include "distributed/detail/packed_state.h"
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

namespace {

constexpr uint64_t kMostDimensions = 64;

template <class... Parts>
void expect_peer(bool holds, const Parts&... what) {
  if (!holds) {
    throw PeerError(c10::str("[Communicator] another rank sent a state that cannot be: ", what...,
                             "; start the same program on all ranks"));
  }
}

template <class T>
void put(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

class PackedReader {
 public:
  explicit PackedReader(std::string_view rest) : rest_(rest) {}

  template <class T>
  T take() {
    T value{};
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(bytes(take<uint64_t>())); }
  std::string_view bytes(uint64_t count) {
    expect_peer(count <= rest_.size(), "it says ", count, " bytes where ", rest_.size(), " are left");
    const std::string_view found = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return found;
  }
  bool is_done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

void put_value(std::string& bytes, const StateValue& value) {
  put(bytes, static_cast<uint8_t>(value.index()));
  if (const auto* flag = std::get_if<bool>(&value)) put(bytes, static_cast<uint8_t>(*flag));
  if (const auto* integer = std::get_if<int64_t>(&value)) put(bytes, *integer);
  if (const auto* number = std::get_if<double>(&value)) put(bytes, std::bit_cast<uint64_t>(*number));
  if (const auto* text = std::get_if<std::string>(&value)) put_text(bytes, *text);
}

StateValue take_value(PackedReader& in) {
  const auto kind = in.take<uint8_t>();
  expect_peer(kind < std::variant_size_v<StateValue>, "a value is of kind ", int{kind});
  if (kind == 0) return in.take<uint8_t>() != 0;
  if (kind == 1) return in.take<int64_t>();
  if (kind == 2) return std::bit_cast<double>(in.take<uint64_t>());
  return in.text();
}

// `left`: bytes that tensors may still take.
at::Tensor take_tensor(PackedReader& in, const std::string& name, uint64_t& left) {
  const auto type = in.take<int8_t>();
  expect_peer(type >= 0 && type < static_cast<int8_t>(at::ScalarType::NumOptions), "'", name, "' is of type ",
              int{type});
  const auto dimensions = in.take<uint64_t>();
  expect_peer(dimensions <= kMostDimensions, "'", name, "' has ", dimensions, " dimensions");
  try {
    const auto dtype = static_cast<at::ScalarType>(type);
    std::vector<int64_t> sizes;
    uint64_t bytes = c10::elementSize(dtype), bound = bytes;
    for (uint64_t i = 0; i < dimensions; ++i) {
      const auto extent = in.take<int64_t>();
      const bool fits = extent >= 0 && !__builtin_mul_overflow(bound, extent == 0 ? 1 : extent, &bound);
      expect_peer(fits && bound <= uint64_t{1} << 62, "'", name, "' has the extent ", extent);
      bytes *= static_cast<uint64_t>(extent);
      sizes.push_back(extent);
    }
    expect_peer(bytes <= left, "'", name, "' takes ", bytes, " bytes where at most ", left, " are possible");
    left -= bytes;
    const at::Tensor made = at::empty(sizes, dtype);
    // Numbers of less than a byte lie in fewer bytes than their count says.
    expect_peer(!made.is_quantized() && made.storage().nbytes() >= made.nbytes(), "'", name, "' is of type ", dtype);
    return made;
  } catch (const c10::Error& error) {
    expect_peer(false, "'", name, "' of type ", int{type}, ": ", error.what_without_backtrace());
    throw;
  }
}

}  // namespace

std::string pack_outline(const StateDict& state) {
  std::string bytes;
  put(bytes, static_cast<uint64_t>(state.tensors().size()));
  for (const auto& [name, tensor] : state.tensors()) {
    put_text(bytes, name);
    put(bytes, static_cast<int8_t>(tensor.scalar_type()));
    put(bytes, static_cast<uint64_t>(tensor.dim()));
    for (const int64_t extent : tensor.sizes()) put(bytes, extent);
  }
  put(bytes, static_cast<uint64_t>(state.values().size()));
  for (const auto& [name, value] : state.values()) {
    put_text(bytes, name);
    put_value(bytes, value);
  }
  return bytes;
}

StateDict unpack_outline(const std::string& outline, uint64_t most_bytes) {
  PackedReader in(outline);
  StateDict state;
  for (auto count = in.take<uint64_t>(); count > 0; --count) {
    const std::string name = in.text();
    state.set(name, take_tensor(in, name, most_bytes));
  }
  for (auto count = in.take<uint64_t>(); count > 0; --count) {
    const std::string name = in.text();
    state.set(name, take_value(in));
  }
  expect_peer(in.is_done(), "there is something behind its end");
  return state;
}

std::vector<std::pair<char*, uint64_t>> tensor_spans(const StateDict& state) {
  std::vector<std::pair<char*, uint64_t>> spans;
  for (const auto& [name, tensor] : state.tensors()) {
    TORCH_INTERNAL_ASSERT(tensor.is_cpu() && tensor.is_contiguous(), name);
    spans.emplace_back(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  }
  return spans;
}

std::string pack_state(const StateDict& state) {
  StateDict plain;
  for (const auto& [name, tensor] : state.tensors()) plain.set(name, tensor.contiguous());
  for (const auto& [name, value] : state.values()) plain.set(name, value);
  std::string bytes;
  put_text(bytes, pack_outline(plain));
  for (const auto& [data, size] : tensor_spans(plain)) bytes.append(data, size);
  return bytes;
}

StateDict unpack_state(const std::string& text) {
  PackedReader in(text);
  const std::string outline = in.text();
  StateDict state = unpack_outline(outline, text.size());
  for (const auto& [data, size] : tensor_spans(state)) {
    const std::string_view bytes = in.bytes(size);
    if (size > 0) std::memcpy(data, bytes.data(), size);
  }
  expect_peer(in.is_done(), "there is something behind its tensors");
  return state;
}

}  // namespace duet
