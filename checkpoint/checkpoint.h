#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include "../base/error.h"
#include "../base/state_dict.h"

namespace duet {

struct CheckpointOptions {
  int max_keep = 3;  // older ones are deleted after a save; never fewer than 2 verified ones stay. -1: keep all
};

enum class CheckpointRank { kAny, kBest };

// One file of a checkpoint as its manifest lists it.
struct CheckpointFile {
  std::string name;
  uint64_t bytes = 0;
  std::string xxh3;  // XXH3-128, 32 hex digits
};

struct CheckpointTensor {
  std::string name;   // as in the StateDict
  std::string file;   // the file that holds it
  std::string dtype;  // as in safetensors: "F32"
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of its first byte in the file
  uint64_t bytes = 0;
  std::string xxh3;
};

struct Manifest {
  int64_t step = 0;
  std::string torch_version, duet_version;
  std::string created;  // "2026-11-21T02:34:00Z"
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;
};

// Folders "step-<step>" under one root, each complete or absent: written as "step-N.tmp.<id>", manifest
// last, every file synced, then renamed; "latest" names the newest. Tensors are safetensors files that any reader
// opens: model.safetensors holds what lies under "model.", <hook>.safetensors what lies under "hooks.<hook>.weights."
// (an average), state.safetensors the rest; state.json the single values. One process at a time saves into a root (a
// second one gets a CheckpointError); any number may read.
class CheckpointStore {
 public:
  explicit CheckpointStore(std::string root, CheckpointOptions options = {});

  // Where a run keeps its checkpoints: <work_dir>/checkpoints.
  static std::string root_of(const std::string& work_dir);
  // Name of the folder of step 12: "step-12".
  static std::string folder_name(int64_t step);

  // Writes `state` as "step-<step>" and returns its path. Throws CheckpointError naming path and reason;
  // what was saved before is then untouched. `keep` names folders that must not be deleted (the best one). kBest does
  // what set_best() does before anything is deleted: a process that dies at any time leaves a best checkpoint.
  std::string save(int64_t step, const StateDict& state, const std::vector<std::string>& keep = {},
                   CheckpointRank rank = CheckpointRank::kAny);

  // Newest checkpoint that verifies; damaged ones are logged (file and key) and passed over.
  // Nothing if there is no checkpoint at all; CheckpointError if there are some and none verifies.
  std::optional<std::string> find_latest() const;
  // Notes in the file "best" beside the checkpoints which folder is the best one. It is a pointer for people and
  // scripts: failing to write it is logged.
  void set_best(const std::string& name) const;
  // Path of the best checkpoint; nothing if none is noted or it is gone.
  std::optional<std::string> find_best() const;
  // Paths of all checkpoints, newest first, unverified.
  std::vector<std::string> list() const;

  // The checkpoint folder that `path` means: itself, or the newest good one under a root, or under the root of a
  // work_dir. Throws CheckpointError naming what is there instead.
  static std::string find(const std::string& path);
  // Verifies and reads the checkpoint that find() gives. Tensors come back contiguous, on
  // the CPU. Throws CheckpointError naming file and key.
  static StateDict load(const std::string& path);
  // Checks sizes and hashes of files and tensors without keeping them; throws as load() does.
  static Manifest verify(const std::string& path);
  // Reads the manifest alone; throws as load() does.
  static Manifest read_manifest(const std::string& path);

 private:
  void clean_up() const;
  void write_pointer(const char* file, const std::string& name) const;
  void delete_old(const std::set<std::string>& keep);
  bool is_good(const std::string& path);

  std::string root_;
  CheckpointOptions options_;
  std::set<std::string> good_;  // names of those that this store wrote or verified
};

}  // namespace duet
