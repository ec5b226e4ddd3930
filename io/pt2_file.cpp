#include "io/pt2_file.h"
#include <exception>
#include <map>
#include <vector>
#include <c10/util/StringUtil.h>
#include <caffe2/serialize/inline_container.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/bounded_json.h"
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"
#include "io/zip_archive.h"

namespace duet {

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

namespace {

using Json = nlohmann::ordered_json;
using zip_archive::Entry;
using zip_archive::Reader;

constexpr uint64_t kMaxText = uint64_t{1} << 30, kPt2TensorTimes = 4;
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

// The parts of an archive. Throws MalformedFile.
class Pt2Archive {
 public:
  explicit Pt2Archive(const std::string& path)
      : zip_(path), root_(find_root(zip_)), model_(find_model(zip_, root_)), storages_(zip_, root_ + "data/") {
    expect_file(zip_.text_of(root_ + "byteorder", 16) != "big", "it was written on a big-endian machine");
  }

  uint64_t size() const { return zip_.size(); }
  std::string program() const { return zip_.text_of(root_ + "models/" + model_ + ".json", kMaxText); }

  // `kind`: "weights" or "constants".
  NamedTensors tensors(const std::string& kind) {
    const std::string name = model_ + "_" + kind + "_config.json";
    const Json document = parse_json<Json>(zip_.text_of(root_ + "data/" + kind + "/" + name, kMaxText), name);
    expect_file(document.is_object() && document.contains("config") && document["config"].is_object(), name,
                " has no object 'config'");
    FileBudget budget(zip_.size(), kPt2TensorTimes);
    NamedTensors tensors;
    for (const auto& [key, item] : document["config"].items()) {
      const Payload payload = payload_of(key, item);
      const at::Tensor& storage = storages_.get(kind + "/" + payload.entry, payload.type);
      const at::Tensor tensor = view_of_storage(storage, payload.offset, payload.shape, key);
      budget.charge(tensor.nbytes(), "what its tensors hold");
      expect_file(!payload.requires_grad || tensor.is_floating_point() || tensor.is_complex(), "tensor '", key,
                  "' asks for gradients of ", payload.type);
      tensors.emplace_back(key, tensor.detach().set_requires_grad(payload.requires_grad));
    }
    return tensors;
  }

  // All of it, with the storages as they are now.
  void write(file_io::FileWriter& file) const {
    std::exception_ptr failure;  // kept from LibTorch, which would end the process
    caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, size_t count) {
      if (!failure) failure = caught([&] { file.write(data, count); });
      return count;
    });
    for (const Entry& entry : zip_.entries()) {
      if (!entry.name.starts_with(root_)) continue;
      const std::string name = entry.name.substr(root_.size());
      if (name.starts_with(".data/")) continue;  // the writer's own
      const auto storage = storages_.read().find(entry.name);
      if (storage != storages_.read().end()) {
        writer.writeRecord(name, storage->second.const_data_ptr(), storage->second.nbytes());
      } else {
        const std::string bytes = zip_.text_of(entry.name, entry.bytes);
        writer.writeRecord(name, bytes.data(), bytes.size());
      }
    }
    writer.writeEndOfFile();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  Reader zip_;
  std::string root_, model_;  // "model/", which every entry begins with; the name of its program
  zip_archive::Storages storages_;
};

}  // namespace

Pt2File read_pt2(const std::string& path) {
  return read_file("pt2", path, [&] {
    Pt2Archive archive(path);
    return Pt2File{archive.program(), archive.tensors("weights"), archive.tensors("constants")};
  });
}

void write_pt2(const std::string& path, const std::string& source, const StateDict& state) {
  read_file("pt2", source, [&] {
    Pt2Archive archive(source);
    take_numbers("pt2", archive.tensors("weights"), state, /*all_are_needed=*/true);
    take_numbers("pt2", archive.tensors("constants"), state, /*all_are_needed=*/false);
    write_file("pt2", [&] {
      file_io::replace_file(path, archive.size(), [&](file_io::FileWriter& file) { archive.write(file); });
    });
  });
}

}  // namespace duet
