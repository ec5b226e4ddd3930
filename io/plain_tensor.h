#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/batch.h"
#include "base/state_dict.h"

namespace duet {

// A type of tensor that files of weights hold, and what safetensors and Python call it.
struct FileType {
  at::ScalarType type;
  const char *safetensors, *storage_class, *dtype;
};
inline constexpr FileType kFileTypes[] = {{at::kDouble, "F64", "DoubleStorage", "float64"},
                                          {at::kFloat, "F32", "FloatStorage", "float32"},
                                          {at::kHalf, "F16", "HalfStorage", "float16"},
                                          {at::kBFloat16, "BF16", "BFloat16Storage", "bfloat16"},
                                          {at::kLong, "I64", "LongStorage", "int64"},
                                          {at::kInt, "I32", "IntStorage", "int32"},
                                          {at::kShort, "I16", "ShortStorage", "int16"},
                                          {at::kChar, "I8", "CharStorage", "int8"},
                                          {at::kByte, "U8", "ByteStorage", "uint8"},
                                          {at::kBool, "BOOL", "BoolStorage", "bool"},
                                          {at::kComplexFloat, "C64", "ComplexFloatStorage", "complex64"}};

// What names and texts in files have to be.
bool is_utf8(const std::string& text);

// Null if files cannot hold it.
const FileType* file_type(at::ScalarType type);
// "image float32 [8, 1, 28, 28], target int64 [8]" of the first 12, without their first `skipped` dimensions.
std::string tensors_text(const NamedTensors& tensors, std::size_t skipped = 0);

// Throws DataError "[format] tensor 'name' ..." for one that a file of weights cannot hold.
void check_plain(const char* format, const std::string& name, const at::Tensor& tensor);
// The same values as a contiguous CPU tensor that only holds bytes: no gradient, no lazy negation or conjugation.
// Throws as check_plain() does.
at::Tensor plain_tensor(const char* format, const std::string& name, const at::Tensor& tensor);

// Copies the tensors of `state` into those of the same names. Throws DataError "[format] ..." where shape or type
// differ, and, if all are needed, for one that the state has under none of its names (those of the same memory).
void take_numbers(const char* format, const NamedTensors& tensors, const StateDict& state, bool all_are_needed);

// Bytes of the values of that shape; nothing if no memory could hold them. An extent of 0 counts as 1 there, as it does
// in LibTorch's strides.
std::optional<uint64_t> bytes_of_shape(at::IntArrayRef sizes, at::ScalarType type);

struct ViewShape {
  std::vector<int64_t> sizes, strides;  // in elements
};
// A view of the 1-d tensor `storage` as a file describes it; of an empty one a new tensor. Throws MalformedFile naming
// `name` unless it lies within the storage and could be copied.
at::Tensor view_of_storage(const at::Tensor& storage, int64_t offset, const ViewShape& shape, const std::string& name);

// A CPU tensor into whose memory `read` puts the bytes of a file. Throws MalformedFile naming `what` if there is no
// memory for it.
at::Tensor tensor_from_file(at::IntArrayRef sizes, at::ScalarType type, const std::string& what,
                            const std::function<void(void* data)>& read);

}  // namespace duet
