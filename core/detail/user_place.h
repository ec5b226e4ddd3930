#pragma once

#include <optional>
#include <string>

namespace duet {

// Where a language that calls duet is in its user's code: "train.py:31 in forward", empty if in none of it.
using FindUserPlace = std::string (*)();
void set_user_place(FindUserPlace find);
// Nothing where C++ calls.
std::optional<std::string> user_place();

}  // namespace duet
