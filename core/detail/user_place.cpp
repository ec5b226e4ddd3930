#include "core/detail/user_place.h"

namespace duet {

namespace {

FindUserPlace finder = nullptr;

}  // namespace

void set_user_place(FindUserPlace find) { finder = find; }

std::optional<std::string> user_place() { return finder != nullptr ? std::optional(finder()) : std::nullopt; }

}  // namespace duet
