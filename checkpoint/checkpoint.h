#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "../base/error.h"
#include "../base/state_dict.h"

namespace duet {

class BackgroundSave;

struct CheckpointOptions {
  int max_keep = 3;  // older ones are deleted after a save; never fewer than 2 verified ones stay. -1: keep all
  int64_t verify_interval = 0;  // every so many saves what was written is read back from the disk first; 0: never
};

// Replays of steps whose host code did not run (GraphOptions::check), from the first step of the run on, those of the
// checkpoints that it went on from included. A later check does not take one off: it tells what the code does then.
struct UncheckedSteps {
  int64_t count = 0;     // of all ranks together
  int64_t in_a_row = 0;  // the most of one signature between two runs of its host code
  // The last step before all of them on which a check may still cast doubt.
  int64_t confirmed = std::numeric_limits<int64_t>::max();
};

// What may have been missed, in a sentence without its point.
std::string to_text(const UncheckedSteps& unchecked);

// What a run was when it saved a checkpoint, beside its state: what decides whether another one goes on from it, and
// how.
struct RunIdentity {
  std::map<std::string, std::string> config{};  // its values by path: {"model.dropout", "0.1"}; empty: it has none
  std::string data{};                           // fingerprint of what it trains on; empty: unknown
  std::vector<std::string> classes{};           // names of its data's classes, by number; empty: unknown
  std::string encoding{};                       // what its data's numbers mean (Dataset::encoding()); empty: unknown
  std::string launch{};                         // which start of a launcher: "torchrun 1234"; empty: none
  std::string parent{};                         // the checkpoint that it went on from; empty: it began by itself
  int64_t world_size = 0;                       // 0: unknown
  std::optional<UncheckedSteps> unchecked{};    // nothing: unknown, saved by a version that did not count
};

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
  RunIdentity run;
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;
  std::string suspect;  // why it may be wrong, which was found after it was saved; empty: nothing was
};

struct LoadedCheckpoint {
  std::string path;  // of the folder step-N
  StateDict state;
  RunIdentity run;
};

// Folders "step-<step>" under one root, each complete or absent: written as "step-N.tmp.<id>", manifest
// last, every file synced, then renamed; "latest" names the newest. Tensors are safetensors files that any reader
// opens: model.safetensors holds what lies under "model.", <hook>.safetensors what lies under "hooks.<hook>.weights."
// (an average), state.safetensors the rest; state.json the single values. One process at a time saves into a root (a
// second one gets a CheckpointError); any number may read.
//
// The steps of one root belong to one run. A save of step 250 beside a step 300 is one of a run that went back: what it
// left is then set aside, so that the newest step is the newest save.
// Its many members are what can be asked of the steps of a root: save, find, read, set aside, keep.
class CheckpointStore {
 public:
  explicit CheckpointStore(std::string root, CheckpointOptions options = {});
  // Waits for a save in the background.
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // Where a run keeps its checkpoints: <work_dir>/checkpoints.
  static std::string root_of(const std::string& work_dir);
  const std::string& root() const { return root_; }
  // Name of the folder of step 12: "step-12".
  static std::string folder_name(int64_t step);

  // Writes `state` as "step-<step>" and returns its path. Throws CheckpointError naming path and reason;
  // what was saved before is then untouched. `keep` names folders that must not be deleted (the best ones). For each of
  // the files `best` it does what set_best() does before anything is deleted: a process that dies at any time leaves a
  // best checkpoint.
  std::string save(int64_t step, const StateDict& state, const std::vector<std::string>& keep = {},
                   const std::vector<std::string>& best = {});
  // The same in the background: returns the path once `state` is copied to the host, and a thread writes it. One at a
  // time: it waits for the one before. An error of the thread is logged at once, and thrown by finish_save(). Where
  // there is no memory for the copy it saves at once. Whatever reads checkpoints in this process waits for such saves.
  std::string save_in_background(int64_t step, const StateDict& state, const std::vector<std::string>& keep = {},
                                 const std::vector<std::string>& best = {});
  // Waits for the save in the background, if there is one, and throws what it threw.
  void finish_save();
  // The run that saves here goes on from `step`: later ones, which another has left, are set aside by the next save.
  void go_on_from(int64_t step) { begin_ = step; }
  // Of the run that saves here from now on.
  void set_identity(RunIdentity run) { run_ = std::move(run); }
  // Removes what dead saves have left here, as each save does, unless somebody saves here now; if it cannot, it logs.
  void remove_leftovers() const;

  // Leaves a note in each checkpoint of later steps that it may be wrong, and why. They stay, hashes and all; what
  // looks for the newest good one prefers one without such a note. What cannot be written is logged.
  void mark_suspect_after(int64_t step, const std::string& reason) const;
  // What the note says; empty: there is none.
  static std::string suspicion(const std::string& path);

  // Moves the checkpoints of later steps to <root>.1, or the next number that is free: all or, if the process dies,
  // none. Returns where they are; empty: there were none. Throws CheckpointError.
  std::string set_aside_after(int64_t step);
  // Where all checkpoints of `root` would go.
  static std::string place_aside(const std::string& root);

  // Newest checkpoint that verifies, of steps up to `last`; damaged ones are logged (file and key) and passed over, and
  // so are suspect ones unless there are no others.
  // Nothing if there is no such checkpoint at all; CheckpointError if there are some and none verifies.
  std::optional<std::string> find_latest(int64_t last = std::numeric_limits<int64_t>::max()) const;
  // Notes in a file beside the checkpoints which folder is the best one: in "best", or in one of a metric. It is a
  // pointer for people and scripts: failing to write it is logged.
  void set_best(const std::string& name, const std::string& file = kBestFile) const;
  // Path of the best checkpoint, a folder or a file of weights; nothing if none is noted or it is gone.
  std::optional<std::string> find_best(const std::string& file = kBestFile) const;
  static constexpr const char* kBestFile = "best";
  static constexpr const char* kWeightsEnding = ".safetensors";
  static bool is_weights(const std::string& name) { return name.ends_with(kWeightsEnding); }
  // The file for the best one by a metric, where there are several: "best_accuracy"; "best_val_loss" for "val/loss".
  static std::string best_file(const std::string& metric);
  // Paths of all checkpoints, newest first, unverified.
  std::vector<std::string> list() const;

  // The checkpoint that a file "latest" or "best" names; any other path itself.
  static std::string follow(const std::string& path);
  // The checkpoint folder that `path` means: itself, the one that such a file names, or the newest good one under a
  // root, or under the root of a work_dir. Throws CheckpointError naming what is there instead.
  static std::string find(const std::string& path);
  // Reads the checkpoint that find() gives, and verifies what it reads while it does. Tensors come back contiguous, on
  // the CPU. Throws CheckpointError naming file and key.
  static LoadedCheckpoint read(const std::string& path);
  static StateDict load(const std::string& path) { return read(path).state; }
  // Checks sizes and hashes of files and tensors without keeping them; throws as load() does.
  static Manifest verify(const std::string& path);
  // Reads the manifest alone; throws as load() does.
  static Manifest read_manifest(const std::string& path);

 private:
  // A save as it was asked for.
  struct Save {
    int64_t step = 0;
    std::vector<std::string> keep;
    std::vector<std::string> best;
    RunIdentity run;
  };

  void begin_save(int64_t step);
  void write(const Save& save, const StateDict& state);
  void write_locked(const Save& save, const StateDict& state);
  std::vector<std::string> list_now() const;
  void clean_up() const;
  std::string set_aside_locked(int64_t step) const;
  void move_abandoned() const;
  void write_pointer(const std::string& file, const std::string& name) const;
  std::string newest_confirmed(const Save& save) const;
  void delete_old(const std::set<std::string>& keep);
  bool is_good(const std::string& path);

  std::string root_;
  CheckpointOptions options_;
  RunIdentity run_;
  std::optional<int64_t> begin_;  // until a save has set aside what is later; written by the thread that saves
  std::set<std::string> good_;    // names of those that this store wrote or verified
  int64_t saves_ = 0;
  std::unique_ptr<BackgroundSave> background_;  // from the first one on; goes first
};

}  // namespace duet
