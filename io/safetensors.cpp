#include "io/safetensors.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"

namespace duet {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw DataError("[safetensors] tensor '" + name + "' " + what);
}

std::string quoted(const std::string& text) {
  require<DataError>(is_utf8(text),
                     c10::str("[safetensors] a name or metadata text is not UTF-8: '", text, "'; rename it"));
  return json(text).dump();
}

std::string metadata_entry(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) text += (text.empty() ? "" : ",") + quoted(key) + ":" + quoted(value);
  return "\"__metadata__\":{" + text + "}";
}

std::string tensor_entry(const std::string& name, const at::Tensor& tensor, uint64_t begin) {
  const std::string shape = json(tensor.sizes().vec()).dump();
  return concat_text(quoted(name), ":{\"dtype\":\"", safetensors_dtype(tensor.scalar_type()), "\",\"shape\":", shape,
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

  std::string json = metadata.empty() ? "{" : "{" + metadata_entry(metadata);
  for (size_t i = 0; i < tensors.size(); ++i) {
    json += (json.size() == 1 ? "" : ",") + tensor_entry(tensors[i].first, tensors[i].second, begin[i]);
  }
  image.header = framed(json + "}");
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
constexpr int kMaxHeaderNesting = 8;  // the format needs 3
constexpr uint64_t kHeaderTimes = 16;
constexpr uint64_t kHeaderKeyBytes = 224, kEntryBytes = 640;  // of a key and its value; of a tensor without its numbers

// Calls take(name, value) for each entry of the outermost object, in the order of the file, and drops it: a header
// takes no more memory than its largest entry. A key that comes twice in an object is refused: readers would differ in
// which of the two they take.
void parse_header(const std::string& text, FileBudget& budget,
                  const std::function<void(const std::string&, const json&)>& take) {
  std::vector<std::set<std::string>> open;
  std::string name;
  size_t elements = 0;  // of the list at hand, or of the outermost one if lists are nested
  const auto see_key = [&](const std::string& key) {
    if (!open.back().insert(key).second) throw MalformedFile{"its header has the key '" + key + "' twice"};
    budget.charge((open.size() == 1 ? kEntryBytes : kHeaderKeyBytes) + 4 * key.size(), "its header");
    if (open.size() == 1) name = key;
  };
  const auto see = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxHeaderNesting) throw MalformedFile{"its header is nested too deep"};
    const bool begins = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (event == json::parse_event_t::array_start && depth < 2)
      throw MalformedFile{"tensor '" + name + "' has no dtype"};
    if (event == json::parse_event_t::array_start && depth == 2) elements = 0;
    if ((event == json::parse_event_t::value || begins) && depth > 2) {
      expect_file(++elements <= kMaxTensorDims, "tensor '", name, "' has more than 64 dimensions");
    }
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) see_key(value.get_ref<const std::string&>());
    if (depth != 1 || begins || event == json::parse_event_t::key) return true;
    take(name, value);
    return false;
  };
  try {
    const json rest = json::parse(text, see);  // nothing
  } catch (const json::exception& error) {
    throw MalformedFile{"its header is not JSON: " + one_line(error.what())};
  }
}

const json& field(const json& entry, const char* key, const std::string& name) {
  const auto found = entry.is_object() ? entry.find(key) : entry.end();
  if (!entry.is_object() || found == entry.end()) throw MalformedFile{c10::str("tensor '", name, "' has no ", key)};
  return *found;
}

std::vector<uint64_t> numbers(const json& list, const char* key, const std::string& name) {
  const bool valid = list.is_array() && std::ranges::all_of(list, [](const json& n) { return n.is_number_unsigned(); });
  expect_file(valid, "tensor '", name, "': ", key, " is not a list of whole numbers from 0 up");
  return list.get<std::vector<uint64_t>>();
}

SafetensorsEntry parse_entry(const std::string& name, const json& value, uint64_t data_bytes) {
  SafetensorsEntry entry;
  entry.name = name;
  const json& type = field(value, "dtype", name);
  const auto* const dtype = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                         [&](const FileType& known) { return type == known.safetensors; });
  expect_file(dtype != std::end(kFileTypes), "tensor '", name, "' has dtype ",
              type.is_string() ? one_line(type.get_ref<const std::string&>(), 40) : type.type_name(),
              ", expected one of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL");
  entry.dtype = dtype->type;

  const std::vector<uint64_t> shape = numbers(field(value, "shape", name), "shape", name);
  if (shape.size() > kMaxTensorDims) throw MalformedFile{"tensor '" + name + "' has more than 64 dimensions"};
  for (const uint64_t extent : shape) {
    expect_file(extent <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), "tensor '", name,
                "': its shape is beyond any memory");
    entry.shape.push_back(static_cast<int64_t>(extent));
  }

  const std::vector<uint64_t> range = numbers(field(value, "data_offsets", name), "data_offsets", name);
  expect_file(range.size() == 2 && range[0] <= range[1] && range[1] <= data_bytes, "tensor '", name,
              "': data_offsets do not lie within the ", data_bytes, " data bytes");
  entry.begin = range[0];
  entry.end = range[1];
  const std::optional<uint64_t> bytes = bytes_of_shape(entry.shape, entry.dtype);
  expect_file(bytes.has_value(), "tensor '", name, "': its shape is beyond any memory");
  expect_file(entry.end - entry.begin == *bytes, "tensor '", name, "': data_offsets span ", entry.end - entry.begin,
              " bytes but its shape and dtype take ", *bytes);
  return entry;
}

void check_metadata(const json& metadata) {
  expect_file(metadata.is_object() && std::ranges::all_of(metadata, [](const json& v) { return v.is_string(); }),
              "__metadata__ is not a map of texts");
}

// By where their data begins.
std::vector<size_t> file_order(const std::vector<SafetensorsEntry>& entries) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(entries[i].begin, entries[i].end); });
  return order;
}

// Every data byte belongs to exactly one tensor.
void check_coverage(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  uint64_t position = 0;
  for (const size_t i : file_order(entries)) {
    const SafetensorsEntry& entry = entries[i];
    expect_file(entry.begin == position, "tensor '", entry.name, "' starts at data byte ", entry.begin, ", expected ",
                position, ": data must have neither holes nor overlaps");
    position = entry.end;
  }
  expect_file(position == data_bytes, "its tensors take ", position, " data bytes but the file has ", data_bytes);
}

// The checked header; `data_start` is where the data begins.
std::vector<SafetensorsEntry> read_header(const file_io::FileReader& file, uint64_t& data_start,
                                          const BytesSeen& seen) {
  uint64_t length = 0;
  if (file.size() < sizeof length)
    throw MalformedFile{c10::str("it has ", file.size(), " bytes, expected at least 10")};
  file.read(0, &length, sizeof length);
  expect_file(length <= kMaxHeader && length <= file.size() - sizeof length, "its header should have ", length,
              " bytes, more than ", length > kMaxHeader ? "the 100 MB that the format allows" : "the file holds");
  std::string text(length, '\0');
  file.read(sizeof length, text.data(), length);
  if (seen) {
    seen("", &length, sizeof length);
    seen("", text.data(), text.size());
  }
  if (text.empty() || text[0] != '{') throw MalformedFile{"its header does not start with '{'"};

  data_start = sizeof length + length;
  const uint64_t data_bytes = file.size() - data_start;
  FileBudget budget(length, kHeaderTimes);
  std::vector<SafetensorsEntry> entries;
  parse_header(text, budget, [&](const std::string& name, const json& value) {
    if (name == "__metadata__") {
      check_metadata(value);
    } else {
      entries.push_back(parse_entry(name, value, data_bytes));
    }
  });
  check_coverage(entries, data_bytes);
  return entries;
}

}  // namespace

std::vector<SafetensorsEntry> read_safetensors_header(const std::string& path) {
  return read_file("safetensors", path, [&] {
    const file_io::FileReader file(path);
    uint64_t data_start = 0;
    std::vector<SafetensorsEntry> entries = read_header(file, data_start, {});
    for (SafetensorsEntry& entry : entries) {
      entry.begin += data_start;
      entry.end += data_start;
    }
    return entries;
  });
}

NamedTensors read_safetensors(const std::string& path, const BytesSeen& seen) {
  return read_file("safetensors", path, [&] {
    const file_io::FileReader file(path);
    uint64_t data_start = 0;
    const std::vector<SafetensorsEntry> entries = read_header(file, data_start, seen);
    NamedTensors tensors(entries.size());
    for (const size_t i : file_order(entries)) {
      const SafetensorsEntry& entry = entries[i];
      const auto read = [&](void* data) {
        file.read(data_start + entry.begin, data, entry.end - entry.begin);
        if (seen) seen(entry.name, data, entry.end - entry.begin);
      };
      tensors[i] = {entry.name, tensor_from_file(entry.shape, entry.dtype, "'" + entry.name + "'", read)};
    }
    return tensors;
  });
}

}  // namespace duet
