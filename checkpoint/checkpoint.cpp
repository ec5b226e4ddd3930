#include "checkpoint/checkpoint.h"
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <new>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/log.h"
#include "checkpoint/detail/background_save.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"

namespace duet {

namespace fs = std::filesystem;
using checkpoint_format::as_checkpoint_error, checkpoint_format::FolderName, checkpoint_format::is_best_file,
    checkpoint_format::kAbandonedFile, checkpoint_format::kLatest, checkpoint_format::kSuspectFile,
    checkpoint_format::name_of, checkpoint_format::names_in, checkpoint_format::parse_folder_name,
    checkpoint_format::read_back, checkpoint_format::verify_folder, checkpoint_format::write_folder;
using file_io::IoError;

namespace {

// What stays is removed at the next save.
void try_to_remove(const std::string& path) {
  try {
    file_io::remove_tree(path);
  } catch (const IoError& error) {
    log_warning(c10::str("[CheckpointStore] ", error.what()));
  }
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

// What keeps a save from its end, as an error that says so.
template <class Call>
void as_save_error(int64_t step, const Call& call) {
  const auto fail = [step](const std::string& why, const char* then) {
    throw CheckpointError(c10::str("[CheckpointStore] step ", step, " was not saved: ", why, "; ", then,
                                   "the previous checkpoint is untouched"));
  };
  try {
    call();
  } catch (const c10::Error& error) {  // from copying to the CPU; a broken device promises nothing about its memory
    fail(c10::str("its tensors could not be read: ", error.what_without_backtrace()), "");
  } catch (const std::bad_alloc&) {
    fail("there is no memory left", "the training state in memory is intact, ");
  } catch (const std::exception& error) {
    fail(c10::str(error.what(), "; free space, check the disk, or set work_dir elsewhere"),
         "the training state in memory is intact, ");
  }
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Where a link leads: what is set aside goes beside the checkpoints themselves, on their file system.
std::string followed(std::string path) {
  std::error_code ignored;
  const fs::path target = fs::read_symlink(path, ignored);
  return target.empty() ? path : without_slash((fs::path(path).parent_path() / target).lexically_normal().string());
}

}  // namespace

CheckpointStore::CheckpointStore(std::string root, CheckpointOptions options)
    : root_(followed(without_slash(std::move(root)))), options_(options) {
  require<ConfigError>(!root_.empty(), "[CheckpointStore] found an empty path, expected a folder; set work_dir");
}

CheckpointStore::~CheckpointStore() = default;

std::string CheckpointStore::root_of(const std::string& work_dir) { return followed(work_dir + "/checkpoints"); }

std::string CheckpointStore::folder_name(int64_t step) { return concat_text("step-", step); }

// One save at a time, whoever begins them, and in their order.
void CheckpointStore::begin_save(int64_t step) {
  require<ConfigError>(step >= 0, c10::str("[CheckpointStore] found step ", step, ", expected 0 or more"));
  if (background_) static_cast<void>(caught([this] { finish_save(); }));  // what it threw is in the log
  BackgroundSave::wait_for_all();
}

std::string CheckpointStore::save(int64_t step, const StateDict& state, const std::vector<std::string>& keep,
                                  const std::vector<std::string>& best) {
  begin_save(step);
  write({step, keep, best, run_}, state);
  return root_ + "/" + folder_name(step);
}

std::string CheckpointStore::save_in_background(int64_t step, const StateDict& state,
                                                const std::vector<std::string>& keep,
                                                const std::vector<std::string>& best) {
  begin_save(step);
  if (!background_) background_ = std::make_unique<BackgroundSave>();
  std::optional<StateDict> staged;
  as_save_error(step, [&] { staged = background_->stage(state); });
  if (!staged) {
    log_warning(c10::str("[CheckpointStore] there is no memory for a copy of the state of step ", step,
                         ": training waits until it is written"));
    return save(step, state, keep, best);
  }
  const Save wanted{step, keep, best, run_};
  background_->start([this, wanted, state = std::move(*staged)] { write(wanted, state); });
  return root_ + "/" + folder_name(step);
}

void CheckpointStore::finish_save() {
  if (background_) background_->finish();
}

void CheckpointStore::write(const Save& save, const StateDict& state) {
  as_save_error(save.step, [&] {
    file_io::create_folder(root_);
    const file_io::FolderLock lock(root_);
    write_locked(save, state);
  });
}

void CheckpointStore::write_locked(const Save& save, const StateDict& state) {
  const std::string name = folder_name(save.step), target = root_ + "/" + name;
  clean_up();
  const std::string folder = target + ".tmp." + file_io::random_id();
  const auto leave_none = c10::make_scope_exit([&] {  // it was renamed by then, or the save failed
    static_cast<void>(caught([&] {                    // even if there is no memory left for a path
      std::error_code ignored;
      if (fs::exists(folder, ignored)) try_to_remove(folder);
    }));
  });
  write_folder(folder, save.step, state, save.run);
  if (options_.verify_interval > 0 && ++saves_ % options_.verify_interval == 0) read_back(folder);
  const int64_t common = std::min(begin_.value_or(save.step), save.step);
  if (const std::string aside = set_aside_locked(common); !aside.empty()) {
    log_warning(c10::str("[CheckpointStore] the checkpoints of steps after ", common, " in '", root_,
                         "' are of a run that went on from where this one has gone back to: they are now in '", aside,
                         "'"));
  }
  begin_.reset();
  commit(folder, target, root_);

  good_.insert(name);
  std::set<std::string> kept = {name};
  for (const std::string& path : save.keep) kept.insert(name_of(path));
  kept.insert(newest_confirmed(save));
  write_pointer(kLatest, name);
  for (const std::string& file : save.best) write_pointer(file, name);
  delete_old(kept);
}

void CheckpointStore::mark_suspect_after(int64_t step, const std::string& reason) const {
  std::vector<std::string> marked;
  for (const std::string& path : list()) {
    if (parse_folder_name(name_of(path))->step <= step) break;
    try {
      file_io::replace_file(path + "/" + kSuspectFile, one_line(reason) + "\n");
      marked.push_back(name_of(path));
    } catch (const IoError& error) {
      log_warning(c10::str("[CheckpointStore] '", path, "' is suspect (", reason, "), and not marked: ", error.what()));
    }
  }
  if (marked.empty()) return;
  log_warning(c10::str("[CheckpointStore] marked as suspect, since they were saved after the last check that found no ",
                       "difference, at step ", step, ": ", c10::Join(", ", marked), " in '", root_, "'"));
}

std::string CheckpointStore::place_aside(const std::string& root) {
  const std::string place = without_slash(root);
  std::error_code ignored;
  int64_t number = 1;
  while (fs::exists(concat_text(place, ".", number), ignored)) ++number;
  return concat_text(place, ".", number);
}

std::string CheckpointStore::set_aside_after(int64_t step) {
  BackgroundSave::wait_for_all();
  if (list_now().empty()) return "";
  try {
    const file_io::FolderLock lock(root_);
    clean_up();
    return set_aside_locked(step);
  } catch (const IoError& error) {
    throw CheckpointError(c10::str("[CheckpointStore] the checkpoints of steps after ", step,
                                   " cannot be set aside: ", error.what(), "; choose another work_dir"));
  }
}

std::string CheckpointStore::set_aside_locked(int64_t step) const {
  const std::vector<std::string> paths = list_now();
  if (paths.empty() || parse_folder_name(name_of(paths.front()))->step <= step) return "";
  const std::string aside = place_aside(root_);
  file_io::replace_file(root_ + "/" + kAbandonedFile, concat_text(step, " ", aside.substr(aside.rfind('.') + 1), "\n"));
  move_abandoned();
  return aside;
}

void CheckpointStore::move_abandoned() const {
  const auto note = checkpoint_format::abandoned_in(root_);
  if (!note) return;
  const auto is_later = [&](const std::string& name) {
    const auto folder = parse_folder_name(name);
    return folder && folder->kind != FolderName::Kind::kTemporary && folder->step > note->after;
  };
  const std::string aside = concat_text(root_, ".", note->number);
  file_io::create_folder(aside);
  const std::vector<std::string> paths = list_now();
  paths.empty() ? file_io::remove_file(root_ + "/" + kLatest) : write_pointer(kLatest, name_of(paths.front()));
  const std::vector<std::string> names = names_in(root_);
  const auto move_if = [&](const auto& is_meant) {
    for (const std::string& name : names) {
      if (is_meant(name)) file_io::rename(root_ + "/" + name, aside + "/" + name);
    }
  };
  move_if([&](const std::string& name) {
    return is_best_file(name) && is_later(checkpoint_format::pointed_name(root_ + "/" + name));
  });
  move_if(is_later);
  file_io::sync_folder(aside);
  file_io::remove_file(root_ + "/" + kAbandonedFile);
  file_io::sync_folder(root_);
}

// Removes what dead saves left behind; puts back what one had moved aside.
void CheckpointStore::clean_up() const {
  move_abandoned();
  const auto is_stale_pointer = [](const std::string& name) {
    const std::string pointer = name.substr(0, name.find(".tmp."));
    return pointer.size() < name.size() && (pointer == kLatest || pointer == kAbandonedFile || is_best_file(pointer));
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

void CheckpointStore::remove_leftovers() const {
  BackgroundSave::wait_for_all();
  try {
    const file_io::FolderLock lock(root_);
    clean_up();
  } catch (const IoError& error) {
    log_warning(c10::str("[CheckpointStore] what an earlier save has left in '", root_, "' stays: ", error.what()));
  }
}

// Names a checkpoint for people and scripts. find_latest() does not rely on it, so that failing here is no failed save.
void CheckpointStore::write_pointer(const std::string& file, const std::string& name) const {
  try {
    file_io::replace_file(root_ + "/" + file, name + "\n");
  } catch (const IoError& error) {
    log_warning(c10::str("[CheckpointStore] ", name, " is saved, but '", file, "' does not name it: ", error.what()));
  }
}

void CheckpointStore::set_best(const std::string& name, const std::string& file) const {
  BackgroundSave::wait_for_all();
  write_pointer(file, name);
}

std::string CheckpointStore::best_file(const std::string& metric) {
  std::string file = concat_text(kBestFile, "_");
  for (const char c : metric) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    file += plain ? c : '_';
  }
  return file;
}

bool CheckpointStore::is_good(const std::string& path) {
  const std::string name = name_of(path);
  if (good_.count(name) != 0) return true;
  try {
    as_checkpoint_error([&] { return verify_folder(path); });
    good_.insert(name);
    return true;
  } catch (const CheckpointError& error) {
    log_warning(error.what());
    return false;
  }
}

// What a run goes on from should a check find later that the host code has changed; empty: there is none.
std::string CheckpointStore::newest_confirmed(const Save& save) const {
  const int64_t confirmed = save.run.unchecked.value_or(UncheckedSteps()).confirmed;
  for (const std::string& path : list_now()) {
    if (parse_folder_name(name_of(path))->step <= confirmed && suspicion(path).empty()) return name_of(path);
  }
  return {};
}

void CheckpointStore::delete_old(const std::set<std::string>& keep) {
  if (options_.max_keep < 0) return;
  const size_t max_keep = static_cast<size_t>(std::max(2, options_.max_keep));
  const std::vector<std::string> paths = list_now();
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
