#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <vector>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "io/file_io.h"
#include "io/safetensors.h"

namespace duet {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxDims = 64;
constexpr int kMaxNesting = 8;  // the format needs 3

struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

// What is wrong with a file; read_safetensors adds which.
struct Malformed {
  std::string what;
};

std::optional<at::ScalarType> parse_dtype(const std::string& name) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool}) {
    if (name == safetensors_dtype(type)) return type;
  }
  return std::nullopt;
}

// The JSON text as a document, and its outermost keys in the order they have in the file. A key that comes twice in
// an object is refused: readers would differ in which of the two they take.
json parse_json(const std::string& text, std::vector<std::string>& keys) {
  std::vector<std::set<std::string>> open;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxNesting) throw Malformed{"its header is nested too deep"};
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open.back().insert(key).second) throw Malformed{"its header has the key '" + key + "' twice"};
      if (open.size() == 1) keys.push_back(key);
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    throw Malformed{std::string("its header is not JSON: ") + error.what()};
  }
}

const json& field(const json& entry, const char* key, const std::string& name) {
  const auto found = entry.is_object() ? entry.find(key) : entry.end();
  if (!entry.is_object() || found == entry.end()) throw Malformed{c10::str("tensor '", name, "' has no ", key)};
  return *found;
}

std::vector<uint64_t> numbers(const json& list, const char* key, const std::string& name) {
  std::vector<uint64_t> values;
  bool valid = list.is_array();
  if (valid) {
    for (const json& item : list) {
      valid = valid && item.is_number_unsigned();
      values.push_back(valid ? item.get<uint64_t>() : 0);
    }
  }
  if (!valid) throw Malformed{c10::str("tensor '", name, "': ", key, " is not a list of whole numbers from 0 up")};
  return values;
}

// Bytes that the shape takes. An extent of 0 counts as 1 in the overflow check, as it does in LibTorch's strides.
uint64_t bytes_of(const Entry& entry) {
  constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max();
  uint64_t bound = c10::elementSize(entry.dtype), bytes = bound;
  for (const int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(bound, static_cast<uint64_t>(std::max<int64_t>(extent, 1)), &bound) || bound > kLimit) {
      throw Malformed{"tensor '" + entry.name + "': its shape is beyond any memory"};
    }
    bytes *= static_cast<uint64_t>(extent);
  }
  return bytes;
}

Entry parse_entry(const std::string& name, const json& value, uint64_t data_bytes) {
  Entry entry;
  entry.name = name;
  const json& type = field(value, "dtype", name);
  const auto dtype = parse_dtype(type.is_string() ? type.get<std::string>() : "");
  if (!dtype) {
    throw Malformed{c10::str("tensor '", name, "' has dtype ", type.dump(-1, ' ', true, json::error_handler_t::replace),
                             ", expected one of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL")};
  }
  entry.dtype = *dtype;

  const std::vector<uint64_t> shape = numbers(field(value, "shape", name), "shape", name);
  if (shape.size() > kMaxDims) throw Malformed{"tensor '" + name + "' has more than 64 dimensions"};
  for (const uint64_t extent : shape) {
    if (extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw Malformed{"tensor '" + name + "': its shape is beyond any memory"};
    }
    entry.shape.push_back(static_cast<int64_t>(extent));
  }

  const std::vector<uint64_t> range = numbers(field(value, "data_offsets", name), "data_offsets", name);
  if (range.size() != 2 || range[0] > range[1] || range[1] > data_bytes) {
    throw Malformed{c10::str("tensor '", name, "': data_offsets do not lie within the ", data_bytes, " data bytes")};
  }
  entry.begin = range[0];
  entry.end = range[1];
  if (entry.end - entry.begin != bytes_of(entry)) {
    throw Malformed{c10::str("tensor '", name, "': data_offsets span ", entry.end - entry.begin,
                             " bytes but its shape and dtype take ", bytes_of(entry))};
  }
  return entry;
}

void check_metadata(const json& metadata) {
  bool valid = metadata.is_object();
  if (valid) {
    for (const json& value : metadata) valid = valid && value.is_string();
  }
  if (!valid) throw Malformed{"__metadata__ is not a map of texts"};
}

// Every data byte belongs to exactly one tensor.
void check_coverage(const std::vector<Entry>& entries, uint64_t data_bytes) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  uint64_t position = 0;
  for (const Entry* entry : order) {
    if (entry->begin != position) {
      throw Malformed{c10::str("tensor '", entry->name, "' starts at data byte ", entry->begin, ", expected ", position,
                               ": data must have neither holes nor overlaps")};
    }
    position = entry->end;
  }
  if (position != data_bytes) {
    throw Malformed{c10::str("its tensors take ", position, " data bytes but the file has ", data_bytes)};
  }
}

// The checked header; `data_start` is where the data begins.
std::vector<Entry> read_header(const file_io::FileReader& file, uint64_t& data_start) {
  uint64_t length = 0;
  if (file.size() < sizeof length) throw Malformed{c10::str("it has ", file.size(), " bytes, expected at least 10")};
  file.read(0, &length, sizeof length);
  if (length > kMaxHeader || length > file.size() - sizeof length) {
    throw Malformed{c10::str("its header should have ", length, " bytes, more than ",
                             length > kMaxHeader ? "the 100 MB that the format allows" : "the file holds")};
  }
  std::string text(length, '\0');
  file.read(sizeof length, text.data(), length);
  if (text.empty() || text[0] != '{') throw Malformed{"its header does not start with '{'"};

  std::vector<std::string> names;
  const json header = parse_json(text, names);
  data_start = sizeof length + length;
  const uint64_t data_bytes = file.size() - data_start;
  std::vector<Entry> entries;
  for (const std::string& name : names) {
    if (name == "__metadata__") {
      check_metadata(header[name]);
    } else {
      entries.push_back(parse_entry(name, header[name], data_bytes));
    }
  }
  check_coverage(entries, data_bytes);
  return entries;
}

at::Tensor read_tensor(const file_io::FileReader& file, const Entry& entry, uint64_t data_start) {
  at::Tensor tensor;
  try {
    tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.dtype));
  } catch (const c10::Error&) {
    throw Malformed{c10::str("there is no memory for the ", entry.end - entry.begin, " bytes of '", entry.name, "'")};
  }
  auto* data = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  file.read(data_start + entry.begin, data, entry.end - entry.begin);
  // A bool that is neither 0 nor 1 is undefined behaviour in C++; others read it as true.
  if (entry.dtype == at::kBool) std::transform(data, data + tensor.nbytes(), data, [](auto byte) { return byte != 0; });
  return tensor;
}

}  // namespace

NamedTensors read_safetensors(const std::string& path) {
  try {
    const file_io::FileReader file(path);
    uint64_t data_start = 0;
    NamedTensors tensors;
    for (const Entry& entry : read_header(file, data_start)) {
      tensors.emplace_back(entry.name, read_tensor(file, entry, data_start));
    }
    return tensors;
  } catch (const Malformed& error) {
    throw DataError(
        c10::str("[safetensors] '", path, "' cannot be used: ", error.what, "; write or download the file again"));
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[safetensors] ", error.what(), "; check the path"));
  }
}

}  // namespace duet
