#include "io/pt2_archive.h"
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "io/bounded_json.h"
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"
#include "io/pt2_file.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;
using zip_archive::Entry;
using zip_archive::Reader;

constexpr uint64_t kMaxText = uint64_t{1} << 30, kTensorTimes = 4;
constexpr const char* kExportAgain = "write it in Python: torch.export.save(torch.export.export(model, args), path)";

// "model/" for the entry "model/archive_format".
std::string find_root(const Reader& zip) {
  const std::string mark = "archive_format";
  for (const Entry& entry : zip.entries()) {
    if (entry.name.ends_with("serialized_exported_program.json")) {
      throw MalformedFile{"it was written by torch.export.save of PyTorch before 2.8", kExportAgain};
    }
    if (entry.name.ends_with("/" + mark)) return entry.name.substr(0, entry.name.size() - mark.size());
  }
  throw MalformedFile{"it is a ZIP archive without the entry archive_format that torch.export.save writes",
                      kExportAgain};
}

// The one exported program of an archive.
std::string find_model(const Reader& zip, const std::string& root) {
  const std::string folder = root + "models/", end = ".json";
  std::vector<std::string> names;
  for (const Entry& entry : zip.entries()) {
    if (entry.name.starts_with(folder) && entry.name.ends_with(end) && entry.name.size() > folder.size() + end.size()) {
      names.push_back(entry.name.substr(folder.size(), entry.name.size() - folder.size() - end.size()));
    }
  }
  if (names.size() == 1) return names.front();
  throw MalformedFile{names.empty() ? "it holds no exported program (is it a compiled package for inference?)"
                                    : "it holds several programs (" + join(names) + "), expected one",
                      kExportAgain};
}

int64_t integer(const Json& value, const std::string& name) {
  expect_file(value.is_object() && value.size() == 1 && value.contains("as_int") && value["as_int"].is_number_integer(),
              "tensor '", name, "' has a size that is no count");
  return value["as_int"].get<int64_t>();
}

std::vector<int64_t> integers(const Json& list, const std::string& name) {
  constexpr size_t kMaxDims = 64;
  expect_file(list.is_array() && list.size() <= kMaxDims, "tensor '", name, "' has no list of at most ", kMaxDims,
              " dimensions");
  std::vector<int64_t> numbers;
  for (const Json& item : list) numbers.push_back(integer(item, name));
  return numbers;
}

// What the archive says of a tensor.
struct Payload {
  std::string entry;
  at::ScalarType type;
  ViewShape shape;
  int64_t offset;
  bool requires_grad;
};

Payload payload_of(const std::string& name, const Json& item) try {
  if (item.at("use_pickle").get<bool>()) {
    throw MalformedFile{"'" + name + "' is an object or a tensor subclass, which only Python can read",
                        "export a model of plain tensors"};
  }
  const Json& meta = item.at("tensor_meta");
  constexpr int64_t kStrided = 7;  // of schema.Layout
  expect_file(meta.at("layout").get<int64_t>() == kStrided, "tensor '", name, "' is sparse, expected a dense one");
  return {item.at("path_name").get<std::string>(),
          pt2_dtype(meta.at("dtype").get<int64_t>()),
          {integers(meta.at("sizes"), name), integers(meta.at("strides"), name)},
          integer(meta.at("storage_offset"), name),
          meta.at("requires_grad").get<bool>()};
} catch (const nlohmann::json::exception& error) {
  throw MalformedFile{"what it says of the tensor '" + name + "' is incomplete: " + error.what()};
}

}  // namespace

at::ScalarType pt2_dtype(int64_t number) {
  static const std::map<int64_t, at::ScalarType> types = {{1, at::kByte},
                                                          {2, at::kChar},
                                                          {3, at::kShort},
                                                          {4, at::kInt},
                                                          {5, at::kLong},
                                                          {6, at::kHalf},
                                                          {7, at::kFloat},
                                                          {8, at::kDouble},
                                                          {9, at::kComplexHalf},
                                                          {10, at::kComplexFloat},
                                                          {11, at::kComplexDouble},
                                                          {12, at::kBool},
                                                          {13, at::kBFloat16},
                                                          {28, at::kUInt16},
                                                          {29, at::kFloat8_e4m3fn},
                                                          {30, at::kFloat8_e5m2},
                                                          {31, at::kFloat8_e4m3fnuz},
                                                          {32, at::kFloat8_e5m2fnuz}};
  const auto found = types.find(number);
  expect_file(found != types.end(), "it holds numbers of a type that duet does not know (", number, ")");
  return found->second;
}

Pt2Archive::Pt2Archive(const std::string& path) : zip_(path), root_(find_root(zip_)), model_(find_model(zip_, root_)) {
  expect_file(zip_.text_of(root_ + "byteorder", 16) != "big", "it was written on a big-endian machine");
}

std::string Pt2Archive::program() const { return zip_.text_of(root_ + "models/" + model_ + ".json", kMaxText); }

const at::Tensor& Pt2Archive::storage(const std::string& name, at::ScalarType type) {
  const auto known = storages_.find(name);
  if (known != storages_.end()) {
    expect_file(known->second.scalar_type() == type, "entry '", name, "' is given two types");
    return known->second;
  }
  const Entry* entry = zip_.find(name);
  expect_file(entry != nullptr, "entry '", name, "' is missing");
  const uint64_t size = c10::elementSize(type);
  expect_file(entry->bytes % size == 0, "entry '", name, "' has ", entry->bytes, " bytes, expected elements of ", type);
  const at::Tensor read = tensor_from_file({static_cast<int64_t>(entry->bytes / size)}, type, "entry '" + name + "'",
                                           [&](void* data) { zip_.read(*entry, data); });
  return storages_.emplace(name, read).first->second;
}

NamedTensors Pt2Archive::tensors(const std::string& kind) {
  const std::string folder = root_ + "data/" + kind + "/", name = model_ + "_" + kind + "_config.json";
  const std::string text = zip_.text_of(folder + name, kMaxText);
  expect_file(!text.empty(), "entry '", folder, name, "' is missing");
  const Json document = parse_json<Json>(text, name);
  expect_file(document.is_object() && document.contains("config") && document["config"].is_object(), name,
              " has no object 'config'");
  FileBudget budget(zip_.size(), kTensorTimes);
  NamedTensors tensors;
  for (const auto& [key, item] : document["config"].items()) {
    const Payload payload = payload_of(key, item);
    const at::Tensor tensor =
        view_of_storage(storage(folder + payload.entry, payload.type), payload.offset, payload.shape, key);
    budget.charge(tensor.nbytes(), "what its tensors hold");
    expect_file(!payload.requires_grad || tensor.is_floating_point() || tensor.is_complex(), "tensor '", key,
                "' asks for gradients of ", payload.type);
    tensors.emplace_back(key, tensor.detach().set_requires_grad(payload.requires_grad));
  }
  return tensors;
}

}  // namespace duet
