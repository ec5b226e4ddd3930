#include "checkpoint/checkpoint.h"
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <torch/headeronly/version.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"

namespace duet {

namespace fs = std::filesystem;
using checkpoint_format::FolderName, checkpoint_format::kManifestFile, checkpoint_format::load_folder,
    checkpoint_format::name_of, checkpoint_format::parse_folder_name, checkpoint_format::verify_folder,
    checkpoint_format::write_folder;
using file_io::IoError;

namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kBest = "best";

// What stays is removed at the next save.
void try_to_remove(const std::string& path) {
  try {
    file_io::remove_tree(path);
  } catch (const IoError& error) {
    log_warning(c10::str("[CheckpointStore] ", error.what()));
  }
}

// What lies in the folder; nothing if it does not exist.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) throw IoError("cannot list", folder, error.value());
  return names;
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
  if (!parse_folder_name(name_of(path))) {
    const fs::path folder(path);
    const std::string plain =
        (folder.has_filename() ? folder : folder.parent_path()).string();  // without '/' at its end
    if (const auto latest = newest_in(plain)) return *latest;
    const std::string root = CheckpointStore::root_of(plain);
    if (fs::is_directory(root, error)) {
      if (const auto latest = newest_in(root)) return *latest;
    }
  }
  throw CheckpointError("[CheckpointStore] '" + path + "' holds neither " + kManifestFile +
                        " nor folders step-N: it is no checkpoint or its save never ended; use another one");
}

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
    const std::string folder = target + ".tmp." + file_io::random_id();
    const auto leave_none = c10::make_scope_exit([&] {  // it was renamed by then, or the save failed
      std::error_code ignored;
      if (fs::exists(folder, ignored)) try_to_remove(folder);
    });
    write_folder(folder, step, state);
    commit(folder, target, root_);

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

std::vector<std::string> CheckpointStore::list() const try {
  std::map<int64_t, std::string> found, aside;
  for (const std::string& name : names_in(root_)) {
    std::error_code ignored;
    const auto folder = parse_folder_name(name);
    const std::string path = root_ + "/" + name;
    if (!folder || !fs::is_directory(path, ignored)) continue;
    if (folder->kind == FolderName::Kind::kComplete) found[folder->step] = path;
    if (folder->kind == FolderName::Kind::kAside) aside[folder->step] = path;
  }
  found.merge(aside);  // counts only where a process died between the two renames of commit()
  std::vector<std::string> paths;
  for (auto it = found.rbegin(); it != found.rend(); ++it) paths.push_back(it->second);
  return paths;
} catch (const IoError& error) {
  throw CheckpointError(c10::str("[CheckpointStore] ", error.what(), "; name a folder that you may read"));
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
  for (const std::string& name : names_in(root_)) {
    const auto folder = parse_folder_name(name);
    if (folder && folder->kind == FolderName::Kind::kAside) aside.emplace_back(root_ + "/" + name, *folder);
    const bool temporary = folder && folder->kind == FolderName::Kind::kTemporary;
    if (temporary || is_stale_pointer(name)) stale.push_back(root_ + "/" + name);
  }
  std::error_code error;
  for (const auto& [path, folder] : aside) {
    const std::string target = root_ + "/" + folder_name(folder.step);
    fs::exists(target, error) ? stale.push_back(path) : file_io::rename(path, target);
  }
  for (const std::string& path : stale) try_to_remove(path);
}

// Names a checkpoint for people and scripts. find_latest() does not rely on it, so that failing here is no failed save.
void CheckpointStore::write_pointer(const char* file, const std::string& name) const {
  try {
    file_io::replace_file(root_ + "/" + file, name + "\n");
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
  return as_checkpoint_error([&] { return checkpoint_format::read_manifest(find_folder(path)); });
}

}  // namespace duet
