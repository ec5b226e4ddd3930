#include <algorithm>
#include <filesystem>
#include <map>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"
#include "io/safetensors.h"

namespace duet {

namespace fs = std::filesystem;
using namespace checkpoint_format;
using file_io::FileReader;
using file_io::IoError;

namespace {

constexpr size_t kChunk = size_t{1} << 20;
constexpr uint64_t kMaxText = uint64_t{1} << 30;  // of a JSON file

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw CheckpointError(c10::str("[CheckpointStore] '", path, "': ", what, "; use another checkpoint"));
}

// Says which, if there is one.
std::optional<std::string> newest_in(const std::string& root) {
  std::optional<std::string> latest = CheckpointStore(root).find_latest();
  if (latest) log_info("the newest good checkpoint in '" + root + "' is '" + *latest + "'");
  return latest;
}

// The folder that `path` means: itself, or the newest good checkpoint in it if it is a root or a work_dir.
std::string find_folder(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw CheckpointError(c10::str("[CheckpointStore] '", path, error ? "': " + error.message() : "' does not exist",
                                   "; name a folder step-N or the root above it"));
  }
  if (!fs::is_directory(path, error)) {
    throw CheckpointError("[CheckpointStore] '" + path + "' is a file, expected a folder step-N; name the folder");
  }
  if (fs::exists(path + "/" + kManifestFile, error)) return path;
  const fs::path folder(path);
  const fs::path plain = folder.has_filename() ? folder : folder.parent_path();  // without '/' at its end
  if (!parse_folder_name(plain.filename().string())) {
    if (const auto latest = newest_in(plain.string())) return *latest;
    const std::string root = CheckpointStore::root_of(plain.string());
    if (fs::is_directory(root, error)) {
      if (const auto latest = newest_in(root)) return *latest;
    }
  }
  throw CheckpointError("[CheckpointStore] '" + path + "' holds neither " + kManifestFile +
                        " nor folders step-N: it is no checkpoint or its save never ended; use another one");
}

// Hashes bytes [from, to) into one or two hashes.
void hash_range(const FileReader& file, uint64_t from, uint64_t to, std::vector<char>& buffer, Xxh3& whole, Xxh3* own) {
  for (; from < to; from += std::min<uint64_t>(kChunk, to - from)) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(kChunk, to - from));
    file.read(from, buffer.data(), count);
    whole.update(buffer.data(), count);
    if (own != nullptr) own->update(buffer.data(), count);
  }
}

// One pass over a file: the hash of each of its tensors, then that of the whole.
void verify_file(const std::string& folder, const CheckpointFile& listed, std::vector<CheckpointTensor> tensors) {
  const std::string path = folder + "/" + listed.name;
  const FileReader file(path);
  if (file.size() != listed.bytes) {
    refuse(path, c10::str("found ", file.size(), " bytes, expected ", listed.bytes));
  }
  std::sort(tensors.begin(), tensors.end(), [](const CheckpointTensor& a, const CheckpointTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::vector<char> buffer(static_cast<size_t>(std::min<uint64_t>(kChunk, listed.bytes)));
  Xxh3 whole;
  uint64_t position = 0;
  for (const CheckpointTensor& tensor : tensors) {
    if (tensor.offset < position || tensor.offset > listed.bytes || tensor.bytes > listed.bytes - tensor.offset) {
      refuse(path, "tensor '" + tensor.name + "' has no place of its own in the file");
    }
    const uint64_t end = tensor.offset + tensor.bytes;
    Xxh3 own;
    hash_range(file, position, tensor.offset, buffer, whole, nullptr);
    hash_range(file, tensor.offset, end, buffer, whole, &own);
    if (own.hex() != tensor.xxh3) {
      refuse(path, c10::str("tensor '", tensor.name, "' changed after it was saved (bytes ", tensor.offset, " to ", end,
                            ")"));
    }
    position = end;
  }
  hash_range(file, position, listed.bytes, buffer, whole, nullptr);
  if (whole.hex() != listed.xxh3) {
    refuse(path, tensors.empty() ? "the file changed after it was saved" : "its header changed after it was saved");
  }
}

Manifest read_manifest_in(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  Manifest manifest = decode_manifest(file_io::read_text(path, kMaxText), path);
  const fs::path name = fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
  const auto parsed = parse_folder_name(name.filename().string());
  if (parsed && parsed->step != manifest.step) {
    refuse(path, c10::str("the manifest is that of step ", manifest.step));
  }
  // Exactly these: a manifest must not lead a reader to files elsewhere.
  std::vector<std::string> tensors, found;
  for (const CheckpointTensor& tensor : manifest.tensors) {
    if (tensor.file != place_of(tensor.name).file) {
      refuse(path,
             "tensor '" + tensor.name + "' is in '" + tensor.file + "', expected '" + place_of(tensor.name).file + "'");
    }
    tensors.push_back(tensor.name);
  }
  for (const CheckpointFile& file : manifest.files) found.push_back(file.name);
  const std::vector<std::string> expected = files_for(tensors);
  if (found != expected) {
    refuse(path, c10::str("found the files ", c10::Join(", ", found), ", expected ", c10::Join(", ", expected)));
  }
  return manifest;
}

Manifest verify_folder(const std::string& folder) {
  Manifest manifest = read_manifest_in(folder);
  std::map<std::string, std::vector<CheckpointTensor>> tensors;
  for (const CheckpointTensor& tensor : manifest.tensors) tensors[tensor.file].push_back(tensor);
  for (const CheckpointFile& file : manifest.files) verify_file(folder, file, tensors[file.name]);
  return manifest;
}

// What was read must be what was verified: the file may have changed in between.
void check_tensor(const std::string& path, const std::string& name, const at::Tensor& tensor,
                  const std::map<std::string, const CheckpointTensor*>& listed) {
  const auto found = listed.find(name);
  if (found == listed.end()) refuse(path, "the manifest does not know tensor '" + name + "'");
  const CheckpointTensor& expected = *found->second;
  const bool same = expected.dtype == safetensors_dtype(tensor.scalar_type()) &&
                    expected.shape == tensor.sizes().vec() &&
                    expected.xxh3 == xxh3_hex(tensor.const_data_ptr(), tensor.nbytes());
  if (!same) refuse(path, "tensor '" + name + "' is not the one that the manifest lists");
}

StateDict load_folder(const std::string& folder) {
  const Manifest manifest = verify_folder(folder);
  std::map<std::string, const CheckpointTensor*> listed;
  for (const CheckpointTensor& tensor : manifest.tensors) listed[tensor.name] = &tensor;

  StateDict state;
  for (const CheckpointFile& file : manifest.files) {
    const auto prefix = prefix_of(file.name);
    if (!prefix) continue;
    const std::string path = folder + "/" + file.name;
    for (const auto& [name, tensor] : read_safetensors(path)) {
      check_tensor(path, *prefix + name, tensor, listed);
      state.set(*prefix + name, tensor);
    }
  }
  if (state.tensors().size() != manifest.tensors.size()) refuse(folder, "tensors of the manifest are missing");

  const std::string path = folder + "/" + kValuesFile;
  const std::string text = file_io::read_text(path, kMaxText);
  const bool same = xxh3_hex(text.data(), text.size()) == manifest.files.back().xxh3;
  if (!same) refuse(path, "the file changed while it was read");
  for (const auto& [name, value] : decode_values(text, path)) state.set(name, value);
  return state;
}

// Runs `call`; errors of the layers below become CheckpointErrors.
template <class Call>
auto as_checkpoint_error(Call call) {
  try {
    return call();
  } catch (const IoError& error) {
    throw CheckpointError(c10::str("[CheckpointStore] ", error.what(), "; use another checkpoint"));
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

}  // namespace

std::string CheckpointStore::find(const std::string& path) {
  return as_checkpoint_error([&] { return find_folder(path); });
}

StateDict CheckpointStore::load(const std::string& path) {
  return as_checkpoint_error([&] { return load_folder(find_folder(path)); });
}

Manifest CheckpointStore::verify(const std::string& path) {
  return as_checkpoint_error([&] { return verify_folder(find_folder(path)); });
}

Manifest CheckpointStore::read_manifest(const std::string& path) {
  return as_checkpoint_error([&] { return read_manifest_in(find_folder(path)); });
}

}  // namespace duet
