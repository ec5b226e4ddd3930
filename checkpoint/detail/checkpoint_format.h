#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "io/file_io.h"

// What lies in a checkpoint folder, and the texts of its JSON files.
namespace duet::checkpoint_format {

// Throws CheckpointError: `what` is wrong with `path`.
[[noreturn]] void refuse(const std::string& path, const std::string& what);
template <class... Parts>
void check(const std::string& path, bool holds, const Parts&... what) {
  if (!holds) refuse(path, c10::str(what...));
}

// What the layers below throw, as an error of the checkpoint that is looked at.
template <class Call>
auto as_checkpoint_error(const Call& call) {
  try {
    return call();
  } catch (const file_io::IoError& error) {
    throw CheckpointError(c10::str("[CheckpointStore] ", error.what(), "; use another checkpoint"));
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

// In the root, for people and scripts.
inline constexpr const char* kLatest = "latest";
inline constexpr const char* kBest = CheckpointStore::kBestFile;
// Whether a file of this name is one of CheckpointStore::set_best().
bool is_best_file(std::string_view name);

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kValuesFile = "state.json";
inline constexpr const char* kManifestFile = "manifest.json";
// Beside them in a checkpoint that was found to be suspect later: CheckpointStore::mark_suspect_after().
inline constexpr const char* kSuspectFile = "suspect";

// In the root while checkpoints are set aside, "100 2": those of steps after 100 no longer count and are on their way
// to <root>.2. Several folders cannot be renamed at once; a process that dies in between leaves the rest to the next
// one.
inline constexpr const char* kAbandonedFile = "abandoned";
struct AbandonedSteps {
  int64_t after = 0, number = 0;
};
std::optional<AbandonedSteps> abandoned_in(const std::string& root);

// Which file holds a tensor follows from its name alone: "model.<name>" lies in kModelFile,
// "hooks.<hook>.weights.<name>", a hook's copy of the weights, in "<hook>.safetensors", the rest in kStateFile. The
// first two lack the prefix there, so that Python sees the module's names.
struct TensorPlace {
  std::string file;
  std::string prefix;
};
TensorPlace place_of(const std::string& tensor);
// What the names in a file of tensors lack; nothing for a name that no such file can have.
std::optional<std::string> prefix_of(const std::string& file);
// The files of a checkpoint that holds these tensors, in the manifest's order: kModelFile, those of hooks by name,
// kStateFile, kValuesFile.
std::vector<std::string> files_for(const std::vector<std::string>& tensors);

// "step-12", "step-12.tmp.<id>" (being written or deleted) or "step-12.old.<id>" (moved aside while a new step-12
// takes its place).
struct FolderName {
  enum class Kind { kComplete, kTemporary, kAside };
  int64_t step = 0;
  Kind kind = Kind::kComplete;
};
std::optional<FolderName> parse_folder_name(const std::string& name);
// Of a path that may end with '/'.
std::string name_of(const std::string& path);
// The folder that a pointer names ("latest", a best file): the first word of a small file. Empty if there is none.
std::string pointed_name(const std::string& path);
// What lies in the folder, by name; nothing if it does not exist. Throws IoError.
std::vector<std::string> names_in(const std::string& folder);

// The manifest's JSON. Its last entry is a hash of all text before it, so that no byte can change unseen.
std::string encode_manifest(const Manifest& manifest);
// Throws CheckpointError naming `path`.
Manifest decode_manifest(const std::string& text, const std::string& path);

// Single values by name, with their types; exact to the last bit. The first throws CheckpointError if a name is not
// UTF-8, the second naming `path`.
std::string encode_values(const std::map<std::string, StateValue>& values);
std::map<std::string, StateValue> decode_values(const std::string& text, const std::string& path);

// The files of one folder (checkpoint_folder.cpp). The first makes and fills it: space for every file first, manifest
// last, all of it synced. The others throw CheckpointError, and IoError or DataError of the layers below.
void write_folder(const std::string& folder, int64_t step, const StateDict& state, const RunIdentity& run);
Manifest read_manifest(const std::string& folder);
Manifest verify_folder(const std::string& folder);
// The same with what is on the disk, not with what the system still has in memory.
void read_back(const std::string& folder);
LoadedCheckpoint load_folder(const std::string& folder);

}  // namespace duet::checkpoint_format
