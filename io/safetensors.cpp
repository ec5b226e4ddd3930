#include "io/safetensors.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/bounded_json.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"

namespace duet {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace {

using nlohmann::json, nlohmann::ordered_json;

constexpr uint64_t kMaxHeader = 100'000'000;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw DataError("[safetensors] tensor '" + name + "' " + what);
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
  const FileType* found = file_type(type);
  return found == nullptr ? nullptr : found->safetensors;
}

SafetensorsImage encode_safetensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names = {"__metadata__"};
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) refuse(name, "has a name that is taken; every name may occur once");
    check_plain("safetensors", name, tensor);
  }
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return tensors[i].second.element_size(); });

  SafetensorsImage image;
  std::vector<uint64_t> begin(tensors.size());
  for (const size_t i : order) {
    begin[i] = image.bytes;
    image.bytes += tensors[i].second.nbytes();
    image.payload.push_back(tensors[i]);
  }

  ordered_json header = ordered_json::object();
  auto& entries = header.get_ref<ordered_json::object_t&>();  // whose emplace_back() looks no key up
  if (!metadata.empty()) entries.emplace_back("__metadata__", metadata);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    entries.emplace_back(name, ordered_json{{"dtype", safetensors_dtype(tensor.scalar_type())},
                                            {"shape", tensor.sizes().vec()},
                                            {"data_offsets", {begin[i], begin[i] + tensor.nbytes()}}});
  }
  try {
    image.header = framed(header.dump());
  } catch (const ordered_json::exception& error) {
    throw DataError(c10::str("[safetensors] a name or metadata text is not UTF-8 (", error.what(), "); rename it"));
  }
  image.bytes += image.header.size();
  return image;
}

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const SafetensorsImage image = encode_safetensors(tensors, metadata);
  write_file("safetensors", [&] {
    file_io::replace_file(path, image.bytes, [&](file_io::FileWriter& file) {
      file.write(image.header.data(), image.header.size());
      for (const auto& [name, tensor] : image.payload) {
        const at::Tensor plain = plain_tensor("safetensors", name, tensor);
        file.write(plain.const_data_ptr(), plain.nbytes());
      }
    });
  });
}

namespace {

constexpr size_t kMaxTensorDims = 64;

const json& field(const json& entry, const char* key, const std::string& name) {
  expect_file(entry.is_object() && entry.contains(key), "tensor '", name, "' has no ", key);
  return entry[key];
}

std::vector<uint64_t> numbers(const json& entry, const char* key, const std::string& name) {
  const json& list = field(entry, key, name);
  const bool valid = list.is_array() && std::ranges::all_of(list, [](const json& n) { return n.is_number_unsigned(); });
  expect_file(valid, "tensor '", name, "': ", key, " is not a list of whole numbers from 0 up");
  return list.get<std::vector<uint64_t>>();
}

SafetensorsEntry parse_entry(const std::string& name, const json& value, uint64_t data_bytes) {
  const json& type = field(value, "dtype", name);
  const auto* const dtype = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                         [&](const FileType& known) { return type == known.safetensors; });
  expect_file(dtype != std::end(kFileTypes), "tensor '", name, "' has dtype ",
              type.is_string() ? one_line(type.get_ref<const std::string&>(), 40) : type.type_name(),
              ", expected one of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL C64");
  const std::vector<uint64_t> shape = numbers(value, "shape", name), range = numbers(value, "data_offsets", name);
  expect_file(shape.size() <= kMaxTensorDims, "tensor '", name, "' has more than 64 dimensions");
  expect_file(range.size() == 2 && range[0] <= range[1] && range[1] <= data_bytes, "tensor '", name,
              "': data_offsets do not lie within the ", data_bytes, " data bytes");
  SafetensorsEntry entry{name, dtype->type, {shape.begin(), shape.end()}, range[0], range[1] - range[0]};
  const std::optional<uint64_t> bytes = bytes_of_shape(entry.shape, entry.dtype);
  expect_file(bytes.has_value(), "tensor '", name, "': its shape is beyond any memory");
  expect_file(entry.bytes == *bytes, "tensor '", name, "': data_offsets span ", entry.bytes,
              " bytes but its shape and dtype take ", *bytes);
  return entry;
}

void check_metadata(const json& metadata) {
  expect_file(metadata.is_object() && std::ranges::all_of(metadata, [](const json& v) { return v.is_string(); }),
              "__metadata__ is not a map of texts");
}

std::string read_header(const file_io::FileReader& file) {
  uint64_t length = 0;
  expect_file(file.size() >= sizeof length, "it has ", file.size(), " bytes, expected at least 10");
  file.read(0, &length, sizeof length);
  expect_file(length <= kMaxHeader && length <= file.size() - sizeof length, "its header should have ", length,
              " bytes, more than ", length > kMaxHeader ? "the 100 MB that the format allows" : "the file holds");
  std::string header(sizeof length + length, '\0');
  file.read(0, header.data(), header.size());
  expect_file(length > 0 && header[sizeof length] == '{', "its header does not start with '{'");
  return header;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path), header_(read_header(file_)) {
  const uint64_t data_bytes = file_.size() - header_.size();
  parse_json_entries(header_.substr(sizeof(uint64_t)), "its header", [&](const std::string& name, const json& value) {
    if (name == "__metadata__") return check_metadata(value);
    entries_.push_back(parse_entry(name, value, data_bytes));
  });
  // Every data byte belongs to exactly one tensor.
  uint64_t position = 0;
  for (const SafetensorsEntry* entry : in_place()) {
    expect_file(entry->begin == position, "tensor '", entry->name, "' starts at data byte ", entry->begin,
                ", expected ", position, ": data must have neither holes nor overlaps");
    position += entry->bytes;
  }
  expect_file(position == data_bytes, "its tensors take ", position, " data bytes but the file has ", data_bytes);
}

std::vector<const SafetensorsEntry*> SafetensorsFile::in_place() const {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : entries_) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const SafetensorsEntry* entry) { return std::pair(entry->begin, entry->bytes); });
  return order;
}

at::Tensor SafetensorsFile::read(const SafetensorsEntry& entry, const BytesSeen& seen) const {
  return tensor_from_file(entry.shape, entry.dtype, "'" + entry.name + "'", [&](void* data) {
    file_.read(header_.size() + entry.begin, data, entry.bytes);
    if (seen) seen(data);
  });
}

NamedTensors read_safetensors(const std::string& path) {
  return read_file("safetensors", path, [&] {
    const SafetensorsFile file(path);
    NamedTensors tensors(file.entries().size());
    for (const SafetensorsEntry* entry : file.in_place()) {
      tensors[static_cast<size_t>(entry - file.entries().data())] = {entry->name, file.read(*entry)};
    }
    return tensors;
  });
}

}  // namespace duet
