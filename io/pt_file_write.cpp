#include <bit>
#include <limits>
#include <map>
#include <tuple>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "io/file_io.h"
#include "io/pickle.h"
#include "io/plain_tensor.h"
#include "io/pt_file.h"
#include "io/zip_archive.h"

namespace duet {

static_assert(std::endian::native == std::endian::little, "the file says that its bytes are little-endian");

namespace {

constexpr const char* kFolder = "archive";

const char* storage_class(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return "DoubleStorage";
    case at::kFloat: return "FloatStorage";
    case at::kHalf: return "HalfStorage";
    case at::kBFloat16: return "BFloat16Storage";
    case at::kLong: return "LongStorage";
    case at::kInt: return "IntStorage";
    case at::kShort: return "ShortStorage";
    case at::kChar: return "CharStorage";
    case at::kByte: return "ByteStorage";
    default: return "BoolStorage";  // plain_tensor() lets no other pass
  }
}

void check_text(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
  } catch (const nlohmann::json::exception&) {
    throw DataError(c10::str("[pt] a name or text is not UTF-8, as Python's texts are: '", text, "'; rename it"));
  }
  require<DataError>(text.size() <= std::numeric_limits<uint32_t>::max(), "[pt] a text exceeds 4 GiB; leave it out");
}

// The pickle, and the storages that it refers to by number.
struct Contents {
  pickle::DictWriter dict;
  std::vector<at::Tensor> storages;
};

void add_tensors(const StateDict& state, Contents& contents) {
  std::map<std::tuple<const void*, int64_t, at::ScalarType>, size_t> known;
  for (const auto& [name, tensor] : state.tensors()) {
    check_text(name);
    const at::Tensor plain = plain_tensor("pt", name, tensor);
    const auto place = std::tuple(plain.const_data_ptr(), plain.numel(), plain.scalar_type());
    const auto [storage, is_new] = known.try_emplace(place, contents.storages.size());
    if (is_new) contents.storages.push_back(plain);
    contents.dict.put_tensor(name, storage_class(plain.scalar_type()), std::to_string(storage->second),
                             plain.sizes().vec(), plain.numel());
  }
}

void add_values(const StateDict& state, pickle::DictWriter& dict) {
  for (const auto& [name, value] : state.values()) {
    check_text(name);
    require<DataError>(state.tensors().count(name) == 0, "[pt] '" + name + "' is a tensor and a value; rename one");
    if (const auto* text = std::get_if<std::string>(&value)) check_text(*text);
    std::visit([&, &key = name](const auto& content) { dict.put(key, content); }, value);
  }
}

}  // namespace

void write_pt(const std::string& path, const StateDict& state) {
  Contents contents;
  add_tensors(state, contents);
  add_values(state, contents.dict);
  const std::string& program = contents.dict.finish();
  const std::string version = "3\n", byte_order = "little", format_version = "1", alignment = "64";
  std::vector<zip_archive::Part> parts;
  const auto add = [&](const std::string& name, const void* data, uint64_t bytes) {
    parts.push_back({kFolder + ("/" + name), data, bytes});
  };
  // In the order of torch.save.
  add("data.pkl", program.data(), program.size());
  add(".format_version", format_version.data(), format_version.size());
  add(".storage_alignment", alignment.data(), alignment.size());
  add("byteorder", byte_order.data(), byte_order.size());
  for (size_t i = 0; i < contents.storages.size(); ++i) {
    add(c10::str("data/", i), contents.storages[i].const_data_ptr(), contents.storages[i].nbytes());
  }
  add("version", version.data(), version.size());
  try {
    zip_archive::write(path, parts);
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[pt] ", error.what(), "; free space or name another place"));
  }
}

}  // namespace duet
