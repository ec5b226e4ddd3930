#include "io/plain_tensor.h"
#include <algorithm>
#include <iterator>
#include <set>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"

namespace duet {

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

const FileType* file_type(at::ScalarType type) {
  const auto* const found =
      std::find_if(std::begin(kFileTypes), std::end(kFileTypes), [type](const FileType& t) { return t.type == type; });
  return found == std::end(kFileTypes) ? nullptr : found;
}

std::string tensors_text(const NamedTensors& tensors, std::size_t skipped) {
  std::vector<std::string> texts;
  for (const auto& [name, tensor] : tensors) {
    const FileType* type = file_type(tensor.scalar_type());
    const std::string dtype = type == nullptr ? c10::toString(tensor.scalar_type()) : type->dtype;
    texts.push_back(c10::str(name, " ", dtype, " ", tensor.sizes().slice(skipped)));
  }
  return join_first(std::move(texts), 12);
}

void check_plain(const char* format, const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(c10::str("[", format, "] tensor '", name, "' ", what));
  };
  if (!tensor.defined()) refuse("is undefined; give it a value");
  if (tensor.layout() != at::kStrided || tensor.is_meta()) {
    refuse("has no dense data; call to_dense() on a sparse tensor, materialise one on the meta device");
  }
  if (file_type(tensor.scalar_type()) == nullptr) {
    refuse(c10::str("is ", tensor.scalar_type(),
                    ", expected a type the format has (F64 F32 F16 BF16 I64 I32 I16 I8 U8 "
                    "BOOL C64); convert it, e.g. complex128 with view_as_real"));
  }
}

at::Tensor plain_tensor(const char* format, const std::string& name, const at::Tensor& tensor) {
  check_plain(format, name, tensor);
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

namespace {

void take_one(const char* format, const std::string& name, const at::Tensor& tensor, const at::Tensor& taken) {
  if (taken.sizes() != tensor.sizes() || taken.scalar_type() != tensor.scalar_type()) {
    throw DataError(c10::str("[", format, "] '", name, "' is ", taken.scalar_type(), " ", taken.sizes(), ", but ",
                             tensor.scalar_type(), " ", tensor.sizes(),
                             " in the file that the model came from; name the file of this model"));
  }
  const bool is_expanded =
      tensor.numel() > 0 && std::find(tensor.strides().begin(), tensor.strides().end(), 0) != tensor.strides().end();
  if (!is_expanded) {
    tensor.detach().copy_(taken.detach());
  } else if (!at::equal(tensor.detach().cpu(), taken.detach().cpu())) {
    throw DataError(c10::str("[", format, "] '", name,
                             "' repeats its numbers in the file, and training has changed them; export a model whose "
                             "tensor is contiguous()"));
  }
}

}  // namespace

void take_numbers(const char* format, const NamedTensors& tensors, const StateDict& state, bool all_are_needed) {
  std::set<const void*> taken;
  for (const auto& [name, tensor] : tensors) {
    const auto found = state.tensors().find(name);
    if (found == state.tensors().end()) continue;
    take_one(format, name, tensor, found->second);
    taken.insert(tensor.const_data_ptr());
  }
  for (const auto& [name, tensor] : tensors) {
    if (all_are_needed && taken.count(tensor.const_data_ptr()) == 0) {
      throw DataError(c10::str("[", format, "] the weights have no '", name,
                               "', which the file that the model came from has; name the file of this model"));
    }
  }
}

std::optional<uint64_t> bytes_of_shape(at::IntArrayRef sizes, at::ScalarType type) {
  const auto size_of_item = static_cast<int64_t>(c10::elementSize(type));
  int64_t extent = size_of_item;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(extent, std::max<int64_t>(size, 1), &extent)) return std::nullopt;
  }
  return static_cast<uint64_t>(size_of_item * c10::multiply_integers(sizes));
}

namespace {

// Whether a view lies within `elements`, and could be copied at all.
bool fits(int64_t offset, const ViewShape& shape, const at::Tensor& storage) {
  const auto has = [](const std::vector<int64_t>& list, auto is) { return std::any_of(list.begin(), list.end(), is); };
  const auto is_negative = [](int64_t number) { return number < 0; };
  if (offset < 0 || shape.sizes.size() != shape.strides.size() || has(shape.sizes, is_negative) ||
      has(shape.strides, is_negative)) {
    return false;
  }
  if (has(shape.sizes, [](int64_t size) { return size == 0; })) return true;
  int64_t last = offset, count = 1, bytes = 0;
  for (size_t i = 0; i < shape.sizes.size(); ++i) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(shape.sizes[i] - 1, shape.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last) || __builtin_mul_overflow(count, shape.sizes[i], &count)) {
      return false;
    }
  }
  return last < storage.numel() && !__builtin_mul_overflow(count, static_cast<int64_t>(storage.element_size()), &bytes);
}

}  // namespace

at::Tensor view_of_storage(const at::Tensor& storage, int64_t offset, const ViewShape& shape, const std::string& name) {
  expect_file(fits(offset, shape, storage), "tensor '", name, "' ", shape.sizes, " does not fit into its storage of ",
              storage.numel(), " elements");
  const bool is_empty = std::find(shape.sizes.begin(), shape.sizes.end(), 0) != shape.sizes.end();
  if (!is_empty) return at::as_strided(storage, shape.sizes, shape.strides, offset);
  try {
    return at::empty(shape.sizes, storage.options());
  } catch (const c10::Error&) {
    throw MalformedFile{c10::str("tensor '", name, "' has the impossible shape ", shape.sizes)};
  }
}

at::Tensor tensor_from_file(at::IntArrayRef sizes, at::ScalarType type, const std::string& what,
                            const std::function<void(void* data)>& read) {
  at::Tensor tensor;
  try {
    tensor = at::empty(sizes, at::TensorOptions().dtype(type));
  } catch (const c10::Error&) {
    const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
    throw MalformedFile{c10::str("there is no memory for the ", bytes, " bytes of ", what)};
  }
  auto* data = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  read(data);
  // A bool that is neither 0 nor 1 is undefined behaviour in C++; others read it as true.
  if (type == at::kBool) std::transform(data, data + tensor.nbytes(), data, [](auto byte) { return byte != 0; });
  return tensor;
}

}  // namespace duet
