#include "hooks/detail/checkpoint_files.h"
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include "base/detail/concat_text.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "core/task.h"

namespace duet {

namespace {

namespace fs = std::filesystem;

bool is_same_place(const std::string& one, const std::string& other) {
  return fs::weakly_canonical(one) == fs::weakly_canonical(other);
}

// As in mmengine each work_dir has its own folder in out_dir.
std::string root_in(const std::string& out_dir, const std::string& work_dir) {
  const fs::path work = fs::weakly_canonical(work_dir);
  return CheckpointStore::root_of((fs::absolute(out_dir).lexically_normal() / work.filename()).string());
}

// Makes <work_dir>/checkpoints a link to where out_dir says. No checkpoint is moved.
void settle_place(const TrainContext& context, const std::string& out_dir) {
  const std::string work_dir = context.work_dir, now = CheckpointStore::root_of(work_dir);
  const std::string wanted = root_in(out_dir, work_dir), entry = work_dir + "/checkpoints";
  if (is_same_place(now, wanted)) return;
  require<ConfigError>(CheckpointStore(now).list().empty(),
                       "[CheckpointHook] found the checkpoints of this run in '" + now + "', expected them in '" +
                           wanted + "' as out_dir says; leave out_dir as it was, or choose another work_dir");
  const std::string& parent = context.identity.parent;
  const bool goes_on = !parent.empty() && is_same_place(fs::path(parent).parent_path().string(), wanted);
  require<ConfigError>(goes_on || CheckpointStore(wanted).list().empty(),
                       "[CheckpointHook] found the checkpoints of another run in '" + wanted +
                           "', expected none there; resume from them, move them away, or choose another out_dir or "
                           "another name for work_dir");
  fs::remove(entry);  // a link, or a folder without anything in it
  fs::create_directories(wanted);
  fs::create_directories(work_dir);
  fs::create_directory_symlink(wanted, entry);
}

// Of a single key without it.
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

}  // namespace

// What cannot be written is found out before training and not at the first save, hours later.
std::string make_checkpoint_folder(const TrainContext& context, const std::string& out_dir) {
  try {
    if (!out_dir.empty()) settle_place(context, out_dir);
    const std::string root = CheckpointStore::root_of(context.work_dir);
    fs::create_directories(root);
    if (access(root.c_str(), W_OK) == 0) return root;
    throw fs::filesystem_error("it cannot be written", root, std::error_code(errno, std::generic_category()));
  } catch (const fs::filesystem_error& error) {
    throw ConfigError(c10::str("[CheckpointHook] found no folder for checkpoints (", error.what(),
                               "), expected one that can be written; change ", out_dir.empty() ? "work_dir" : "out_dir",
                               " (now '", out_dir.empty() ? context.work_dir : out_dir, "')"));
  }
}

void publish_weights(const std::vector<std::string>& keys, const std::map<std::string, std::string>& checkpoints,
                     const TrainContext& context) {
  const std::string folder = context.work_dir + "/published";
  for (const auto& [name, checkpoint] : checkpoints) {
    const StateDict state = CheckpointStore::load(checkpoint);
    for (const std::string& key : keys) {
      if (!below({key}, state).empty()) continue;
      log_warning(c10::str("[CheckpointHook] '", checkpoint, "' has nothing below '", key,
                           "' of published_keys, expected a name such as model or hooks.ema.weights; correct it"));
    }
    const StateDict weights = below(keys, state);
    if (weights.tensors().empty()) continue;
    fs::create_directories(folder);
    const std::string stem = concat_text(folder, "/", name, "-", weights_hash(weights).substr(0, 8));
    write_weights(stem + ".safetensors", weights);
    const std::string model = context.task.write_model(stem, weights);
    log_info("published '" + stem + ".safetensors'" + (model.empty() ? "" : " and '" + model + "'"));
  }
}

bool attempt_save(const TrainContext& context, const std::function<void()>& write) try {
  write();
  return true;
} catch (const CheckpointError& error) {
  if (context.is_main) {
    log_error(c10::str("[CheckpointHook] no checkpoint of step ", context.progress.step,
                       ", training goes on and the next save tries again: ", error.what()));
  }
  return false;
}

}  // namespace duet
