#include "checkpoint/checkpoint.h"
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <utility>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/headeronly/version.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"
#include "io/safetensors.h"

namespace duet {

namespace fs = std::filesystem;
using namespace checkpoint_format;
using file_io::FileWriter;
using file_io::IoError;

namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kBest = "best";
constexpr size_t kChunk = size_t{1} << 20;  // hashed and written while it is in the cache

// What stays is removed at the next save.
void try_to_remove(const std::string& path) {
  try {
    file_io::remove_tree(path);
  } catch (const IoError& error) {
    log_warning(c10::str("[CheckpointStore] ", error.what()));
  }
}

// The folder of this path, if there is one, goes at the end of the scope: it was renamed by then, or the save failed.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    if (fs::exists(path_, ignored)) try_to_remove(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// The tensors of one file, and what goes into it.
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

// Writes a file and notes its hashes in the manifest.
void write_tensors(const TensorFile& file, FileWriter& out, Manifest& manifest) {
  const SafetensorsImage& image = file.image;
  Xxh3 whole;
  whole.update(image.header.data(), image.header.size());
  out.write(image.header.data(), image.header.size());
  uint64_t offset = image.header.size();
  for (const auto& [name, tensor] : image.payload) {
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

// Makes and fills `folder`: space for every file first, manifest last, all of it synced.
void write_checkpoint(const std::string& folder, int64_t step, const StateDict& state) {
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

// Gives `folder` its final name. A checkpoint of that name is moved aside first, never deleted first: at any moment
// list() finds the old one or the new one.
void commit(const std::string& folder, const std::string& target, const std::string& root) {
  std::error_code error;
  if (!fs::exists(target, error)) {
    file_io::rename(folder, target);
    file_io::sync_folder(root);
    return;
  }
  const std::string aside = target + ".old." + file_io::random_id();
  file_io::rename(target, aside);
  try {
    file_io::rename(folder, target);
  } catch (const IoError&) {
    file_io::rename(aside, target);
    throw;
  }
  file_io::sync_folder(root);
  try_to_remove(aside);
}

// Deletes under a temporary name: a process that dies half way leaves no damaged checkpoint.
void remove_checkpoint(const std::string& path) {
  const std::string doomed = path + ".tmp." + file_io::random_id();
  file_io::rename(path, doomed);
  try_to_remove(doomed);
}

std::string name_of(const std::string& path) {
  const fs::path folder(path);
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

}  // namespace

CheckpointStore::CheckpointStore(std::string root, CheckpointOptions options)
    : root_(std::move(root)), options_(options) {
  require<ConfigError>(!root_.empty(), "[CheckpointStore] found an empty path, expected a folder; set work_dir");
}

std::string CheckpointStore::root_of(const std::string& work_dir) { return work_dir + "/checkpoints"; }

std::string CheckpointStore::folder_name(int64_t step) { return c10::str("step-", step); }

std::string CheckpointStore::save(int64_t step, const StateDict& state, const std::vector<std::string>& keep,
                                  CheckpointRank rank) {
  require<ConfigError>(step >= 0, c10::str("[CheckpointStore] found step ", step, ", expected 0 or more"));
  constexpr const char* kIntact = "; the training state in memory is intact, the previous checkpoint is untouched; ";
  const std::string name = folder_name(step);
  const std::string target = root_ + "/" + name;
  try {
    file_io::create_folder(root_);
    const file_io::FolderLock lock(root_);
    clean_up();
    const TemporaryFolder folder(target + ".tmp." + file_io::random_id());
    write_checkpoint(folder.path(), step, state);
    commit(folder.path(), target, root_);

    good_.insert(name);
    std::set<std::string> kept = {name};
    for (const std::string& path : keep) kept.insert(name_of(path));
    write_pointer(kLatest, name);
    if (rank == CheckpointRank::kBest) write_pointer(kBest, name);
    delete_old(kept);
  } catch (const IoError& error) {
    throw CheckpointError(c10::str("[CheckpointStore] step ", step, " was not saved: ", error.what(), kIntact,
                                   "free space or set work_dir elsewhere"));
  } catch (const DataError& error) {
    throw CheckpointError(c10::str("[CheckpointStore] step ", step, " was not saved: ", error.what(), kIntact,
                                   "leave that tensor out of the state"));
  } catch (const c10::Error& error) {  // from copying to the CPU; a broken device promises nothing about its memory
    throw CheckpointError(c10::str("[CheckpointStore] step ", step, " was not saved: its tensors could not be read: ",
                                   error.what_without_backtrace(), "; the previous checkpoint is untouched"));
  }
  return target;
}

std::vector<std::string> CheckpointStore::list() const {
  std::map<int64_t, std::string> found, aside;
  std::error_code error;
  fs::directory_iterator entry(root_, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    const auto folder = parse_folder_name(name);
    if (!folder || !entry->is_directory(ignored)) continue;
    if (folder->kind == FolderName::Kind::kComplete) found[folder->step] = root_ + "/" + name;
    if (folder->kind == FolderName::Kind::kAside) aside[folder->step] = root_ + "/" + name;
  }
  if (error) {
    throw CheckpointError(c10::str("[CheckpointStore] ", IoError("cannot list", root_, error.value()).what(),
                                   "; name a folder that you may read"));
  }
  found.merge(aside);  // counts only where a process died between the two renames of commit()
  std::vector<std::string> paths;
  for (auto it = found.rbegin(); it != found.rend(); ++it) paths.push_back(it->second);
  return paths;
}

std::optional<std::string> CheckpointStore::find_latest() const {
  const std::vector<std::string> paths = list();
  for (const std::string& path : paths) {
    try {
      verify(path);
      return path;
    } catch (const CheckpointError& error) {
      log_warning(c10::str(error.what(), "; passing over it"));
    }
  }
  if (paths.empty()) return std::nullopt;
  throw CheckpointError(c10::str("[CheckpointStore] none of the ", paths.size(), " checkpoints in '", root_,
                                 "' verifies (the log names file and key of each); restore one from a copy, or train "
                                 "anew in another work_dir"));
}

// Removes what dead saves left behind; puts back what one had moved aside.
void CheckpointStore::clean_up() const {
  const auto is_stale_pointer = [](const std::string& name) {
    return name.rfind(c10::str(kLatest, ".tmp."), 0) == 0 || name.rfind(c10::str(kBest, ".tmp."), 0) == 0;
  };
  std::vector<std::pair<std::string, FolderName>> aside;
  std::vector<std::string> stale;
  std::error_code error;
  fs::directory_iterator entry(root_, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto folder = parse_folder_name(name);
    if (folder && folder->kind == FolderName::Kind::kAside) aside.emplace_back(root_ + "/" + name, *folder);
    const bool temporary = folder && folder->kind == FolderName::Kind::kTemporary;
    if (temporary || is_stale_pointer(name)) stale.push_back(root_ + "/" + name);
  }
  if (error) throw IoError("cannot list", root_, error.value());
  for (const auto& [path, folder] : aside) {
    const std::string target = root_ + "/" + folder_name(folder.step);
    fs::exists(target, error) ? stale.push_back(path) : file_io::rename(path, target);
  }
  for (const std::string& path : stale) try_to_remove(path);
}

// Names a checkpoint for people and scripts. find_latest() does not rely on it, so that failing here is no failed save.
void CheckpointStore::write_pointer(const char* file, const std::string& name) const {
  try {
    const std::string text = name + "\n";
    file_io::replace_file(root_ + "/" + file, text.size(),
                          [&](FileWriter& out) { out.write(text.data(), text.size()); });
  } catch (const IoError& error) {
    log_warning(c10::str("[CheckpointStore] ", name, " is saved, but '", file, "' does not name it: ", error.what()));
  }
}

void CheckpointStore::set_best(const std::string& name) const { write_pointer(kBest, name); }

std::optional<std::string> CheckpointStore::find_best() const {
  std::ifstream file(root_ + "/" + kBest);
  std::string name;
  std::error_code ignored;
  // Nothing but the name of a checkpoint: the file must not lead a reader elsewhere.
  if (!(file >> name) || !parse_folder_name(name) || !fs::is_directory(root_ + "/" + name, ignored))
    return std::nullopt;
  return root_ + "/" + name;
}

bool CheckpointStore::is_good(const std::string& path) {
  const std::string name = name_of(path);
  if (good_.count(name) != 0) return true;
  try {
    verify(path);
    good_.insert(name);
    return true;
  } catch (const CheckpointError& error) {
    log_warning(error.what());
    return false;
  }
}

void CheckpointStore::delete_old(const std::set<std::string>& keep) {
  if (options_.max_keep < 0) return;
  const size_t max_keep = static_cast<size_t>(std::max(2, options_.max_keep));
  const std::vector<std::string> paths = list();
  if (paths.size() <= max_keep) return;
  int good = 0;  // only two matter, and each may cost a read
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string name = name_of(paths[i]);
    if (i < max_keep || good < 2 || keep.count(name) != 0) {
      if (good < 2 && is_good(paths[i])) ++good;
      continue;
    }
    try {
      remove_checkpoint(paths[i]);
      good_.erase(name);
    } catch (const IoError& error) {
      log_warning(c10::str("[CheckpointStore] an old checkpoint stays: ", error.what()));
    }
  }
}

}  // namespace duet
