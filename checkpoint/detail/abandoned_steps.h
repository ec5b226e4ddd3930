#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace duet {

// Checkpoints that a run has left by going back to an earlier one, on their way from its root to a folder beside it.
// Several folders cannot be renamed at once: a note in the root says first that those after a step no longer count,
// and goes when all are moved. A process that dies in between leaves the note, and the next one moves the rest.
struct AbandonedSteps {
  int64_t after = 0;
  std::string folder;  // beside the root, by name: "checkpoints.1"
};

// Name of the note.
inline constexpr const char* kAbandonedNote = "abandoned";
// The note in `root`, if there is one. Throws IoError.
std::optional<AbandonedSteps> read_abandoned(const std::string& root);
// Whether a folder or file of this name, "step-12" or the like, is one of those that no longer count.
bool is_abandoned(const std::optional<AbandonedSteps>& note, int64_t step);
// The first moment: from now on they do not count. Throws IoError.
void abandon_after(const std::string& root, const AbandonedSteps& note);
// Moves what the note in `root` names, the file that names the best one too if it names one of them. Without a note it
// does nothing. Throws IoError.
void move_abandoned(const std::string& root);

// "<root>.1", or the next number that is free.
std::string free_place_beside(const std::string& root);

}  // namespace duet
