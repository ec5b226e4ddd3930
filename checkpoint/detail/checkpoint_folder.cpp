#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <c10/util/StringUtil.h>
#include <torch/headeronly/version.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"
#include "io/safetensors.h"

namespace duet::checkpoint_format {

using file_io::FileWriter;

namespace {

constexpr size_t kChunk = size_t{1} << 20;        // hashed and read or written while it is in the cache
constexpr uint64_t kMaxText = uint64_t{1} << 30;  // of a JSON file

template <class Take>
void for_chunks(const void* data, uint64_t bytes, const Take& take) {
  const auto* const begin = static_cast<const char*>(data);
  for (uint64_t done = 0; done < bytes; done += kChunk) {
    take(begin + done, static_cast<size_t>(std::min<uint64_t>(kChunk, bytes - done)));
  }
}

struct TensorFile {
  std::string name, prefix;
  SafetensorsImage image;
};

std::vector<TensorFile> tensor_files(const StateDict& state) {
  std::map<std::string, NamedTensors> by_file;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state.tensors()) {
    const TensorPlace place = place_of(name);
    by_file[place.file].emplace_back(name.substr(place.prefix.size()), tensor);
    names.push_back(name);
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};  // Transformers reads no file without it
  std::vector<TensorFile> files;
  for (const std::string& file : files_for(names)) {
    if (const auto prefix = prefix_of(file))
      files.push_back({file, *prefix, encode_safetensors(by_file[file], metadata)});
  }
  return files;
}

void write_tensors(const TensorFile& file, FileWriter& out, Manifest& manifest) {
  const SafetensorsImage& image = file.image;
  Xxh3 whole;
  whole.update(image.header.data(), image.header.size());
  out.write(image.header.data(), image.header.size());
  uint64_t offset = image.header.size();
  for (const auto& [name, given] : image.payload) {
    const at::Tensor tensor = plain_tensor("safetensors", name, given);  // one at a time: those of a GPU may be large
    const size_t bytes = tensor.nbytes();
    Xxh3 own;
    for_chunks(tensor.const_data_ptr(), bytes, [&](const char* chunk, size_t count) {
      own.update(chunk, count);
      whole.update(chunk, count);
      out.write(chunk, count);
    });
    manifest.tensors.push_back({file.prefix + name, file.name, safetensors_dtype(tensor.scalar_type()),
                                tensor.sizes().vec(), offset, bytes, own.hex()});
    offset += bytes;
  }
  out.finish();
  manifest.files.push_back({file.name, offset, whole.hex()});
}

}  // namespace

void write_folder(const std::string& folder, int64_t step, const StateDict& state, const RunIdentity& run) {
  const std::vector<TensorFile> files = tensor_files(state);
  const std::string values = encode_values(state.values());

  file_io::create_folder(folder);
  std::vector<std::unique_ptr<FileWriter>> writers;
  for (const TensorFile& file : files) {
    writers.push_back(std::make_unique<FileWriter>(folder + "/" + file.name, file.image.bytes));
  }
  FileWriter values_file(folder + "/" + kValuesFile, values.size());

  Manifest manifest;
  manifest.step = step;
  manifest.torch_version = TORCH_VERSION;
  manifest.duet_version = DUET_VERSION;
  manifest.created = utc_now();
  manifest.run = run;
  for (std::size_t i = 0; i < files.size(); ++i) write_tensors(files[i], *writers[i], manifest);
  values_file.write(values.data(), values.size());
  values_file.finish();
  manifest.files.push_back({kValuesFile, values.size(), xxh3_hex(values.data(), values.size())});

  const std::string text = encode_manifest(manifest);
  FileWriter manifest_file(folder + "/" + kManifestFile, text.size());
  manifest_file.write(text.data(), text.size());
  manifest_file.finish();
  file_io::sync_folder(folder);
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  Manifest manifest = decode_manifest(file_io::read_text(path, kMaxText), path);
  const auto parsed = parse_folder_name(name_of(folder));
  check(path, !parsed || parsed->step == manifest.step, "the manifest is that of step ", manifest.step);
  // Exactly these: a manifest must not lead a reader to files elsewhere.
  std::vector<std::string> tensors, found;
  for (const CheckpointTensor& tensor : manifest.tensors) {
    check(path, tensor.file == place_of(tensor.name).file, "tensor '", tensor.name, "' is in '", tensor.file,
          "', expected '", place_of(tensor.name).file, "'");
    tensors.push_back(tensor.name);
  }
  for (const CheckpointFile& file : manifest.files) found.push_back(file.name);
  const std::vector<std::string> expected = files_for(tensors);
  check(path, found == expected, "found the files ", c10::Join(", ", found), ", expected ", c10::Join(", ", expected));
  manifest.suspect = CheckpointStore::suspicion(folder);
  return manifest;
}

namespace {

using Tensors = std::vector<CheckpointTensor>;
using Take = std::function<void(const std::string& name, const at::Tensor& tensor)>;

// That a file holds the tensors that the manifest lists, each as it is listed and where: whoever goes by the one reads
// what whoever goes by the other does. They come in the order of `file.in_place()`.
std::vector<CheckpointTensor> matched(const std::string& path, const std::string& prefix, const SafetensorsFile& file,
                                      const Tensors& listed) {
  std::map<std::string, CheckpointTensor> unseen;
  for (const CheckpointTensor& tensor : listed) {
    check(path, unseen.emplace(tensor.name, tensor).second, "the manifest lists tensor '", tensor.name, "' twice");
  }
  Tensors tensors;
  for (const SafetensorsEntry* entry : file.in_place()) {
    auto found = unseen.extract(prefix + entry->name);
    check(path, !found.empty(), "the manifest does not know tensor '", prefix, entry->name, "'");
    const CheckpointTensor& tensor = tensors.emplace_back(std::move(found.mapped()));
    const uint64_t offset = file.header().size() + entry->begin;
    const bool is_same = tensor.dtype == safetensors_dtype(entry->dtype) && tensor.shape == entry->shape &&
                         tensor.offset == offset && tensor.bytes == entry->bytes;
    check(path, is_same, "tensor '", tensor.name, "' is ", safetensors_dtype(entry->dtype), " ",
          c10::IntArrayRef(entry->shape), " at bytes ", offset, " to ", offset + entry->bytes, ", the manifest says ",
          tensor.dtype, " ", c10::IntArrayRef(tensor.shape), " at bytes ", tensor.offset, " to ",
          tensor.offset + tensor.bytes);
  }
  check(path, unseen.empty(), "tensor '", unseen.empty() ? "" : unseen.begin()->first, "' of the manifest is missing");
  return tensors;
}

// Each tensor is verified as it comes, and the file as a whole in the end.
void read_tensors(const std::string& path, const CheckpointFile& listed, const Tensors& tensors, const Take& take) try {
  const SafetensorsFile file(path);
  check(path, file.size() == listed.bytes, "found ", file.size(), " bytes, expected ", listed.bytes);
  Xxh3 whole;
  whole.update(file.header().data(), file.header().size());
  const Tensors expected = matched(path, *prefix_of(listed.name), file, tensors);
  const std::vector<const SafetensorsEntry*> entries = file.in_place();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Xxh3 own;
    const at::Tensor tensor = file.read(*entries[i], [&](const void* data) {
      for_chunks(data, entries[i]->bytes, [&](const char* chunk, size_t count) {
        whole.update(chunk, count);
        own.update(chunk, count);
      });
    });
    check(path, own.hex() == expected[i].xxh3, "tensor '", expected[i].name, "' changed after it was saved (bytes ",
          expected[i].offset, " to ", expected[i].offset + expected[i].bytes, ")");
    take(expected[i].name, tensor);
  }
  check(path, whole.hex() == listed.xxh3, "its header changed after it was saved");
} catch (const MalformedFile& error) {
  refuse(path, one_line(error.what));
}

// Verifies all files of a checkpoint and hands out the tensors, one after the other; the text of its values.
std::string read_files(const std::string& folder, const Manifest& manifest, const Take& take) {
  std::map<std::string, Tensors> tensors;
  for (const CheckpointTensor& tensor : manifest.tensors) tensors[tensor.file].push_back(tensor);
  std::string values;
  for (const CheckpointFile& file : manifest.files) {
    const std::string path = folder + "/" + file.name;
    if (prefix_of(file.name)) {
      read_tensors(path, file, tensors[file.name], take);
    } else {
      values = file_io::read_text(path, kMaxText);
      check(path, xxh3_hex(values.data(), values.size()) == file.xxh3, "the file changed after it was saved");
    }
  }
  return values;
}

}  // namespace

Manifest verify_folder(const std::string& folder) {
  Manifest manifest = read_manifest(folder);
  read_files(folder, manifest, [](const std::string&, const at::Tensor&) {});
  return manifest;
}

void read_back(const std::string& folder) {
  for (const CheckpointFile& file : read_manifest(folder).files) file_io::drop_from_cache(folder + "/" + file.name);
  verify_folder(folder);
}

LoadedCheckpoint load_folder(const std::string& folder) {
  Manifest manifest = read_manifest(folder);
  LoadedCheckpoint loaded{folder, {}, {}};
  const std::string values = read_files(
      folder, manifest, [&](const std::string& name, const at::Tensor& tensor) { loaded.state.set(name, tensor); });
  for (const auto& [name, value] : decode_values(values, folder + "/" + kValuesFile)) loaded.state.set(name, value);
  loaded.run = std::move(manifest.run);
  return loaded;
}

}  // namespace duet::checkpoint_format
