#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <c10/util/StringUtil.h>
#include <torch/headeronly/version.h>
#include "base/detail/bits.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"
#include "io/safetensors.h"

namespace duet::checkpoint_format {

using file_io::FileReader;
using file_io::FileWriter;

namespace {

constexpr size_t kChunk = size_t{1} << 20;        // hashed and read or written while it is in the cache
constexpr uint64_t kMaxText = uint64_t{1} << 30;  // of a JSON file

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
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
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    const size_t bytes = tensor.nbytes();
    Xxh3 own;
    for (size_t done = 0; done < bytes; done += kChunk) {
      const size_t count = std::min(kChunk, bytes - done);
      own.update(data + done, count);
      whole.update(data + done, count);
      out.write(data + done, count);
    }
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

namespace {

using Tensors = std::vector<CheckpointTensor>;

std::map<std::string, Tensors> by_file(const Manifest& manifest) {
  std::map<std::string, Tensors> tensors;
  for (const CheckpointTensor& tensor : manifest.tensors) tensors[tensor.file].push_back(tensor);
  return tensors;
}

// That a file holds the tensors that the manifest lists, each as it is listed and where: whoever goes by the one reads
// what whoever goes by the other does.
void check_header(const std::string& path, const std::string& prefix, const Tensors& listed) {
  std::map<std::string, const CheckpointTensor*> unseen;
  for (const CheckpointTensor& tensor : listed) {
    check(path, unseen.emplace(tensor.name, &tensor).second, "the manifest lists tensor '", tensor.name, "' twice");
  }
  for (const SafetensorsEntry& entry : read_safetensors_header(path)) {
    const auto found = unseen.extract(prefix + entry.name);
    check(path, !found.empty(), "the manifest does not know tensor '", prefix, entry.name, "'");
    const CheckpointTensor& tensor = *found.mapped();
    const bool is_same = tensor.dtype == safetensors_dtype(entry.dtype) && tensor.shape == entry.shape &&
                         tensor.offset == entry.begin && tensor.bytes == entry.end - entry.begin;
    check(path, is_same, "tensor '", tensor.name, "' is ", safetensors_dtype(entry.dtype), " ",
          c10::IntArrayRef(entry.shape), " at bytes ", entry.begin, " to ", entry.end, ", the manifest says ",
          tensor.dtype, " ", c10::IntArrayRef(tensor.shape), " at bytes ", tensor.offset, " to ",
          tensor.offset + tensor.bytes);
  }
  check(path, unseen.empty(), "tensor '", unseen.empty() ? "" : unseen.begin()->first, "' of the manifest is missing");
}

void hash_range(const FileReader& file, uint64_t from, uint64_t to, std::vector<char>& buffer, Xxh3& whole, Xxh3* own) {
  for (; from < to; from += std::min<uint64_t>(kChunk, to - from)) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(kChunk, to - from));
    file.read(from, buffer.data(), count);
    whole.update(buffer.data(), count);
    if (own != nullptr) own->update(buffer.data(), count);
  }
}

// One pass over a file: the hash of each of its tensors, then that of the whole.
void verify_file(const std::string& folder, const CheckpointFile& listed, Tensors tensors) {
  const std::string path = folder + "/" + listed.name;
  const FileReader file(path);
  check(path, file.size() == listed.bytes, "found ", file.size(), " bytes, expected ", listed.bytes);
  std::sort(tensors.begin(), tensors.end(), [](const CheckpointTensor& a, const CheckpointTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::vector<char> buffer(static_cast<size_t>(std::min<uint64_t>(kChunk, listed.bytes)));
  Xxh3 whole;
  uint64_t position = 0;
  for (const CheckpointTensor& tensor : tensors) {
    check(path,
          tensor.offset >= position && tensor.offset <= listed.bytes && tensor.bytes <= listed.bytes - tensor.offset,
          "tensor '", tensor.name, "' has no place of its own in the file");
    const uint64_t end = tensor.offset + tensor.bytes;
    Xxh3 own;
    hash_range(file, position, tensor.offset, buffer, whole, nullptr);
    hash_range(file, tensor.offset, end, buffer, whole, &own);
    check(path, own.hex() == tensor.xxh3, "tensor '", tensor.name, "' changed after it was saved (bytes ",
          tensor.offset, " to ", end, ")");
    position = end;
  }
  hash_range(file, position, listed.bytes, buffer, whole, nullptr);
  check(path, whole.hex() == listed.xxh3,
        tensors.empty() ? "the file changed after it was saved" : "its header changed after it was saved");
  if (const auto prefix = prefix_of(listed.name)) check_header(path, *prefix, tensors);
}

}  // namespace

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

Manifest verify_folder(const std::string& folder) {
  Manifest manifest = read_manifest(folder);
  std::map<std::string, Tensors> tensors = by_file(manifest);
  for (const CheckpointFile& file : manifest.files) verify_file(folder, file, tensors[file.name]);
  return manifest;
}

void read_back(const std::string& folder) {
  for (const CheckpointFile& file : read_manifest(folder).files) file_io::drop_from_cache(folder + "/" + file.name);
  verify_folder(folder);
}

namespace {

// One reading of a file of tensors, which are verified as they come; then the file as a whole.
void load_tensors(const std::string& folder, const CheckpointFile& file, const std::string& prefix,
                  const Tensors& listed, StateDict& state) {
  const std::string path = folder + "/" + file.name;
  std::map<std::string, const CheckpointTensor*> by_name;
  for (const CheckpointTensor& tensor : listed) by_name[tensor.name] = &tensor;
  Xxh3 whole;
  const auto verify = [&](const std::string& name, const void* data, uint64_t bytes) {
    Xxh3 own;
    const auto* const begin = static_cast<const char*>(data);
    for (uint64_t done = 0; done < bytes; done += kChunk) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>(kChunk, bytes - done));
      whole.update(begin + done, count);
      own.update(begin + done, count);
    }
    if (name.empty()) return;  // the header
    const auto found = by_name.find(prefix + name);
    check(path, found != by_name.end(), "the manifest does not know tensor '", prefix, name, "'");
    const CheckpointTensor& expected = *found->second;
    check(path, own.hex() == expected.xxh3 && bytes == expected.bytes, "tensor '", prefix, name,
          "' changed after it was saved (bytes ", expected.offset, " to ", expected.offset + expected.bytes, ")");
  };
  for (const auto& [name, tensor] : read_safetensors(path, verify)) state.set(prefix + name, tensor);
  check(path, whole.hex() == file.xxh3, "the file changed after it was saved");
  check_header(path, prefix, listed);
}

}  // namespace

LoadedCheckpoint load_folder(const std::string& folder) {
  Manifest manifest = read_manifest(folder);
  std::map<std::string, Tensors> tensors = by_file(manifest);
  LoadedCheckpoint loaded{folder, {}, std::move(manifest.run)};
  for (const CheckpointFile& file : manifest.files) {
    if (const auto prefix = prefix_of(file.name)) load_tensors(folder, file, *prefix, tensors[file.name], loaded.state);
  }

  const std::string path = folder + "/" + kValuesFile;
  const std::string text = file_io::read_text(path, kMaxText);
  check(path, xxh3_hex(text.data(), text.size()) == manifest.files.back().xxh3, "the file changed after it was saved");
  for (const auto& [name, value] : decode_values(text, path)) loaded.state.set(name, value);
  return loaded;
}

}  // namespace duet::checkpoint_format
