#include "io/safetensors.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"

namespace duet {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw DataError("[safetensors] tensor '" + name + "' " + what);
}

// JSON text of a string; DataError if it is not UTF-8, which JSON demands.
std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw DataError(c10::str("[safetensors] a name or metadata text is not UTF-8: '", text, "'; rename it"));
  }
}

std::string metadata_entry(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) text += (text.empty() ? "" : ",") + quoted(key) + ":" + quoted(value);
  return "\"__metadata__\":{" + text + "}";
}

std::string tensor_entry(const std::string& name, const at::Tensor& tensor, uint64_t begin) {
  const std::string shape = nlohmann::json(tensor.sizes().vec()).dump();
  return c10::str(quoted(name), ":{\"dtype\":\"", safetensors_dtype(tensor.scalar_type()), "\",\"shape\":", shape,
                  ",\"data_offsets\":[", begin, ",", begin + tensor.nbytes(), "]}");
}

// Length prefix, then the JSON padded with spaces so that the data starts at a multiple of 8.
std::string framed(std::string json) {
  json.resize((json.size() + 7) / 8 * 8, ' ');
  require<DataError>(json.size() <= kMaxHeader, "[safetensors] the header would exceed 100 MB; split the file");
  const uint64_t length = json.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + json;
}

}  // namespace

const char* safetensors_dtype(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return "F64";
    case at::kFloat: return "F32";
    case at::kHalf: return "F16";
    case at::kBFloat16: return "BF16";
    case at::kLong: return "I64";
    case at::kInt: return "I32";
    case at::kShort: return "I16";
    case at::kChar: return "I8";
    case at::kByte: return "U8";
    case at::kBool: return "BOOL";
    default: return nullptr;
  }
}

SafetensorsImage encode_safetensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names = {"__metadata__"};
  std::vector<at::Tensor> given;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) refuse(name, "has a name that is taken; every name may occur once");
    given.push_back(plain_tensor("safetensors", name, tensor));
  }

  std::vector<size_t> order(given.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return given[a].element_size() > given[b].element_size(); });

  SafetensorsImage image;
  std::vector<uint64_t> begin(given.size());
  for (const size_t i : order) {
    begin[i] = image.bytes;
    image.bytes += given[i].nbytes();
    image.payload.emplace_back(tensors[i].first, given[i]);
  }

  std::string json = metadata.empty() ? "{" : "{" + metadata_entry(metadata);
  for (size_t i = 0; i < given.size(); ++i) {
    json += (json.size() == 1 ? "" : ",") + tensor_entry(tensors[i].first, given[i], begin[i]);
  }
  image.header = framed(json + "}");
  image.bytes += image.header.size();
  return image;
}

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const SafetensorsImage image = encode_safetensors(tensors, metadata);
  try {
    file_io::replace_file(path, image.bytes, [&](file_io::FileWriter& file) {
      file.write(image.header.data(), image.header.size());
      for (const auto& [name, tensor] : image.payload) file.write(tensor.const_data_ptr(), tensor.nbytes());
    });
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[safetensors] ", error.what(), "; free space or name another place"));
  }
}

}  // namespace duet
