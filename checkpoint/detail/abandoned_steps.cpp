#include "checkpoint/detail/abandoned_steps.h"
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/file_io.h"

namespace duet {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxNote = 4096;

// A folder beside the root and nothing else: the note must not lead anywhere.
bool is_beside(const std::string& folder, const std::string& root) {
  const std::string begin = checkpoint_format::name_of(root) + ".";
  return folder.starts_with(begin) && parse_number<uint64_t>(std::string_view(folder).substr(begin.size())).has_value();
}

std::string beside(const std::string& root, const std::string& name) {
  return (fs::path(root).parent_path() / name).string();
}

std::vector<std::string> steps_after(const std::string& root, int64_t step) {
  std::vector<std::string> names;
  for (const std::string& name : checkpoint_format::names_in(root)) {
    const auto folder = checkpoint_format::parse_folder_name(name);
    const bool counts = folder && folder->kind != checkpoint_format::FolderName::Kind::kTemporary;
    if (counts && folder->step > step) names.push_back(name);
  }
  return names;
}

std::string note_in(const std::string& root) { return concat_text(root, "/", kAbandonedNote); }

}  // namespace

std::optional<AbandonedSteps> read_abandoned(const std::string& root) {
  std::error_code ignored;
  if (!fs::exists(note_in(root), ignored)) return std::nullopt;
  std::istringstream text(file_io::read_text(note_in(root), kMaxNote));
  AbandonedSteps note;
  if (text >> note.after >> note.folder && is_beside(note.folder, root)) return note;
  return std::nullopt;  // no note of ours
}

bool is_abandoned(const std::optional<AbandonedSteps>& note, int64_t step) { return note && step > note->after; }

void abandon_after(const std::string& root, const AbandonedSteps& note) {
  file_io::replace_file(note_in(root), concat_text(note.after, "\n", note.folder, "\n"));
}

void move_abandoned(const std::string& root) {
  const auto note = read_abandoned(root);
  if (!note) return;
  const std::string aside = beside(root, note->folder);
  file_io::create_folder(aside);
  for (const std::string& name : checkpoint_format::names_in(root)) {
    if (!checkpoint_format::is_best_file(name)) continue;
    const auto best = checkpoint_format::parse_folder_name(checkpoint_format::pointed_name(root + "/" + name));
    if (best && is_abandoned(note, best->step)) file_io::rename(root + "/" + name, aside + "/" + name);
  }
  for (const std::string& name : steps_after(root, note->after)) file_io::rename(root + "/" + name, aside + "/" + name);
  file_io::sync_folder(aside);
  file_io::remove_file(note_in(root));
  file_io::sync_folder(root);
}

std::string free_place_beside(const std::string& root) {
  std::error_code ignored;
  int64_t number = 1;
  while (fs::exists(concat_text(root, ".", number), ignored)) ++number;
  return concat_text(root, ".", number);
}

}  // namespace duet
