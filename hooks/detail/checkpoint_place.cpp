#include "hooks/detail/checkpoint_place.h"
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
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

// What lies below the keys.
StateDict below(const std::vector<std::string>& keys, const StateDict& state) {
  StateDict found;
  for (const auto& [name, tensor] : state.tensors()) {
    for (const std::string& key : keys) {
      if (!name.starts_with(key + ".")) continue;
      found.set(keys.size() == 1 ? name.substr(key.size() + 1) : name, tensor);
      break;
    }
  }
  return found;
}

// "model", "optimizer", "hooks.ema.weights"
std::vector<std::string> publishable(const StateDict& state) {
  std::set<std::string> names;
  for (const auto& entry : state.tensors()) {
    const std::string& name = entry.first;
    std::size_t end = name.find('.');
    for (int more = name.starts_with("hooks.") ? 2 : 0; more > 0 && end != std::string::npos; --more) {
      end = name.find('.', end + 1);
    }
    if (end != std::string::npos) names.insert(name.substr(0, end));
  }
  return {names.begin(), names.end()};
}

void warn_of_empty_keys(const std::vector<std::string>& keys, const StateDict& state, const std::string& checkpoint) {
  std::vector<std::string> empty;
  for (const std::string& key : keys) {
    if (below({key}, state).tensors().empty()) empty.push_back(key);
  }
  if (empty.empty()) return;
  log_warning(c10::str("[CheckpointHook] '", checkpoint, "' has nothing below the published_keys ",
                       c10::Join(", ", empty), "; correct them; ",
                       known_and_nearest(empty.front(), publishable(state))));
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

StateDict load_below(const std::vector<std::string>& keys, const std::string& checkpoint) {
  const StateDict state = CheckpointStore::load(checkpoint);
  warn_of_empty_keys(keys, state, checkpoint);
  return below(keys, state);
}

}  // namespace duet
