#pragma once

#include <duet/core/state_dict.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace duet {

struct CheckpointOptions {
  int max_keep = 3;  // older ones are deleted after a save; never fewer than 2 verified ones stay
};

// One file of a checkpoint as its manifest lists it.
struct CheckpointFile {
  std::string name;
  uint64_t bytes = 0;
  std::string xxh3;  // XXH3-128, 32 hex digits
};

struct CheckpointTensor {
  std::string name, file, dtype, xxh3;
  std::vector<int64_t> shape;
};

struct Manifest {
  int64_t update = 0;
  std::string torch_version, duet_version, created;
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;
};

// Folders "step-<update>" under one root, each complete or absent: written as "step-N.tmp.<id>", manifest
// last, every file synced, then renamed; "latest" names the newest. Tensors are safetensors files that any reader opens:
// model.safetensors holds what lies under "model.", state.safetensors the rest; state.json the single values.
class CheckpointStore {
 public:
  explicit CheckpointStore(std::string root, CheckpointOptions options = {});

  // Writes `state` as "step-<update>" and returns its path. Throws CheckpointError naming path and reason;
  // what was saved before is then untouched. `keep` names folders that must not be deleted (the best one).
  std::string save(int64_t update, const StateDict& state, const std::vector<std::string>& keep = {});

  // Newest checkpoint that verifies; damaged ones are logged (file and key) and passed over.
  // Nothing if there is no checkpoint at all; CheckpointError if there are some and none verifies.
  std::optional<std::string> find_latest() const;
  // Paths of all checkpoints, newest first, unverified.
  std::vector<std::string> list() const;

  // Verifies and reads one checkpoint folder. Throws CheckpointError naming file and key.
  static StateDict load(const std::string& path);
  // Checks sizes and hashes of files and tensors without keeping them; throws as load() does.
  static Manifest verify(const std::string& path);

 private:
  void delete_old(const std::vector<std::string>& keep) const;

  std::string root_;
  CheckpointOptions options_;
};

}  // namespace duet
