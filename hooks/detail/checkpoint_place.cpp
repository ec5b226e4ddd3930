#include "hooks/detail/checkpoint_place.h"
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <unistd.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace duet {

namespace {

namespace fs = std::filesystem;

// Found out before training and not at the first save, hours later.
void make_folder(const std::string& root, const std::string& work_dir) {
  std::error_code failed;
  std::filesystem::create_directories(root, failed);
  if (!failed && access(root.c_str(), W_OK) != 0) failed = std::error_code(errno, std::generic_category());
  if (failed) {
    throw ConfigError("[CheckpointHook] found '" + root + "' that cannot be written (" + failed.message() +
                      "), expected a writable folder; change work_dir (now '" + work_dir + "')");
  }
}

bool is_same_place(const std::string& one, const std::string& other) {
  return fs::weakly_canonical(one) == fs::weakly_canonical(other);
}

// As in mmengine each work_dir has its own folder in out_dir.
std::string root_in(const std::string& out_dir, const std::string& work_dir) {
  const fs::path work = fs::weakly_canonical(work_dir);
  return CheckpointStore::root_of((fs::absolute(out_dir).lexically_normal() / work.filename()).string());
}

void refuse_folders(const std::string& found, const std::string& expected, const std::string& way_out) {
  throw ConfigError("[CheckpointHook] found " + found + ", expected " + expected + "; " + way_out);
}

// Makes <work_dir>/checkpoints a link to where out_dir says. No checkpoint is moved.
void settle_place(const TrainContext& context, const std::string& out_dir) {
  const std::string work_dir = context.work_dir, now = CheckpointStore::root_of(work_dir);
  const std::string wanted = root_in(out_dir, work_dir), entry = work_dir + "/checkpoints";
  if (is_same_place(now, wanted)) return;
  if (!CheckpointStore(now).list().empty()) {
    refuse_folders("the checkpoints of this run in '" + now + "'", "them in '" + wanted + "' as out_dir says",
                   "leave out_dir as it was, or choose another work_dir");
  }
  const std::string& parent = context.identity.parent;
  const bool goes_on = !parent.empty() && is_same_place(fs::path(parent).parent_path().string(), wanted);
  if (!goes_on && !CheckpointStore(wanted).list().empty()) {
    refuse_folders("the checkpoints of another run in '" + wanted + "'", "none there",
                   "resume from them, move them away, or choose another out_dir or another name for work_dir");
  }
  fs::remove(entry);  // a link, or a folder without anything in it
  fs::create_directories(wanted);
  fs::create_directories(work_dir);
  fs::create_directory_symlink(wanted, entry);
}

}  // namespace

std::string make_checkpoint_folder(const TrainContext& context, const std::string& out_dir) {
  try {
    if (!out_dir.empty()) settle_place(context, out_dir);
  } catch (const fs::filesystem_error& error) {
    refuse_folders(error.what(), "a folder for checkpoints and a link to it in '" + context.work_dir + "'",
                   "change out_dir (now '" + out_dir + "')");
  }
  const std::string root = CheckpointStore::root_of(context.work_dir);
  make_folder(root, context.work_dir);
  return root;
}

}  // namespace duet
