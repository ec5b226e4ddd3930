// What of CheckpointStore reads: finding, listing, loading and verifying. All of it waits for the saves of this process
// that are still being written.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/detail/background_save.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"

namespace duet {

namespace fs = std::filesystem;
using checkpoint_format::abandoned_in, checkpoint_format::as_checkpoint_error, checkpoint_format::FolderName,
    checkpoint_format::kManifestFile, checkpoint_format::kSuspectFile, checkpoint_format::load_folder,
    checkpoint_format::name_of, checkpoint_format::names_in, checkpoint_format::parse_folder_name,
    checkpoint_format::verify_folder;
using file_io::IoError;

std::vector<std::string> CheckpointStore::list() const {
  BackgroundSave::wait_for_all();
  return list_now();
}

std::vector<std::string> CheckpointStore::list_now() const try {
  std::map<int64_t, std::string> found, aside;
  const auto abandoned = abandoned_in(root_);
  for (const std::string& name : names_in(root_)) {
    std::error_code ignored;
    const auto folder = parse_folder_name(name);
    const std::string path = root_ + "/" + name;
    if (!folder || (abandoned && folder->step > abandoned->after) || !fs::is_directory(path, ignored)) continue;
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

namespace {

// Newest first, and those that are suspect behind the others.
void put_suspects_last(std::vector<std::string>& paths) {
  const auto is_good = [](const std::string& path) { return CheckpointStore::suspicion(path).empty(); };
  const auto good = std::find_if(paths.begin(), paths.end(), is_good);
  for (auto path = paths.begin(); good != paths.end() && path != good; ++path) {
    log_warning("[CheckpointStore] '" + *path + "' is suspect: " + CheckpointStore::suspicion(*path) +
                "; passing over it for '" + *good + "'");
  }
  std::stable_partition(paths.begin(), paths.end(), is_good);
}

// What `look` makes of the newest checkpoint in `root`, of steps up to `last`, that it does not refuse; nothing if
// there is none at all. Those that are refused are logged, as are those that are suspect and come last for it.
template <class Look>
auto newest_good(const std::string& root, const Look& look, int64_t last = std::numeric_limits<int64_t>::max())
    -> std::optional<decltype(look(root))> {
  std::vector<std::string> paths = CheckpointStore(root).list();
  std::erase_if(paths, [last](const std::string& path) { return parse_folder_name(name_of(path))->step > last; });
  put_suspects_last(paths);
  for (const std::string& path : paths) {
    try {
      return as_checkpoint_error([&] { return look(path); });
    } catch (const CheckpointError& error) {
      log_warning(c10::str(error.what(), "; passing over it"));
    }
  }
  if (paths.empty()) return std::nullopt;
  throw CheckpointError(c10::str("[CheckpointStore] none of the ", paths.size(), " checkpoints in '", root,
                                 "' verifies (the log names file and key of each); restore one from a copy, or train "
                                 "anew in another work_dir"));
}

std::string verified(const std::string& path) {
  verify_folder(path);
  return path;
}

// What `look` makes of the checkpoint folder that `path` means: itself, or the newest good one in it if it is a root or
// a work_dir.
template <class Look>
auto look_at(const std::string& given, const Look& look) -> decltype(look(given)) {
  BackgroundSave::wait_for_all();
  const std::string path = CheckpointStore::follow(given);
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw CheckpointError(c10::str("[CheckpointStore] '", path, error ? "': " + error.message() : "' does not exist",
                                   "; name a folder step-N or the root above it"));
  }
  if (!fs::is_directory(path, error)) {
    throw CheckpointError("[CheckpointStore] '" + path + "' is a file, expected a folder step-N; name the folder");
  }
  if (fs::exists(path + "/" + kManifestFile, error)) return as_checkpoint_error([&] { return look(path); });
  if (!parse_folder_name(name_of(path))) {
    const fs::path folder(path);
    const std::string plain =
        (folder.has_filename() ? folder : folder.parent_path()).string();  // without '/' at its end
    if (auto found = newest_good(plain, look)) return std::move(*found);
    const std::string root = CheckpointStore::root_of(plain);
    if (fs::is_directory(root, error)) {
      if (auto found = newest_good(root, look)) return std::move(*found);
    }
  }
  throw CheckpointError("[CheckpointStore] '" + path + "' holds neither " + kManifestFile +
                        " nor folders step-N: it is no checkpoint or its save never ended; use another one");
}

}  // namespace

std::string CheckpointStore::suspicion(const std::string& path) {
  constexpr uint64_t kMost = 1 << 16;
  const std::string note = path + "/" + kSuspectFile;
  std::error_code ignored;
  if (!fs::exists(note, ignored)) return {};
  try {
    const std::string text = file_io::read_text(note, kMost);
    return one_line(text.substr(0, text.find('\n')));
  } catch (const IoError& error) {
    return error.what();
  }
}

std::optional<std::string> CheckpointStore::find_latest(int64_t last) const {
  return newest_good(root_, verified, last);
}

std::optional<std::string> CheckpointStore::find_best(const std::string& pointer) const {
  BackgroundSave::wait_for_all();
  const std::string name = checkpoint_format::pointed_name(root_ + "/" + pointer);
  std::error_code ignored;
  // Nothing but the name of a checkpoint, or of weights alone: the file must not lead a reader elsewhere.
  const auto folder = parse_folder_name(is_weights(name) ? name.substr(0, name.rfind('.')) : name);
  if (!folder || !fs::exists(root_ + "/" + name, ignored)) return std::nullopt;
  const auto abandoned = abandoned_in(root_);
  if (abandoned && folder->step > abandoned->after) return std::nullopt;
  return root_ + "/" + name;
}

std::string CheckpointStore::follow(const std::string& path) {
  std::error_code error;
  const fs::path pointer = fs::canonical(path, error);
  const std::string file = pointer.filename().string();
  const bool is_pointer = file == checkpoint_format::kLatest || checkpoint_format::is_best_file(file);
  if (error || !is_pointer || !fs::is_regular_file(pointer, error)) return path;
  if (auto found = CheckpointStore(pointer.parent_path().string()).find_best(file)) return *found;
  const std::string name = checkpoint_format::pointed_name(pointer.string());
  if (!parse_folder_name(name)) return path;
  throw CheckpointError(
      c10::str("[CheckpointStore] '", path, "' names '", name, "', which is not there; name another"));
}

std::string CheckpointStore::find(const std::string& given) {
  const std::string path = follow(given);
  std::string found =
      look_at(path, [&](const std::string& folder) { return folder == path ? folder : verified(folder); });
  if (found != path) log_info("the newest good checkpoint in '" + path + "' is '" + found + "'");
  return found;
}

LoadedCheckpoint CheckpointStore::read(const std::string& given) {
  const std::string path = follow(given);
  LoadedCheckpoint loaded = look_at(path, load_folder);
  if (loaded.path != path) log_info("the newest good checkpoint in '" + path + "' is '" + loaded.path + "'");
  if (const std::string reason = suspicion(loaded.path); !reason.empty()) {
    log_warning("[CheckpointStore] '" + loaded.path + "' is suspect: " + reason);
  }
  return loaded;
}

Manifest CheckpointStore::verify(const std::string& path) { return look_at(path, verify_folder); }

Manifest CheckpointStore::read_manifest(const std::string& path) {
  return look_at(path, [&](const std::string& folder) {
    return folder == path ? checkpoint_format::read_manifest(folder) : verify_folder(folder);
  });
}

}  // namespace duet
