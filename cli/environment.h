#pragma once

#include <nlohmann/json_fwd.hpp>

namespace duet {

// What runs here: {"versions": {...}, "machine": {...}}, the same for every run of this program on this machine.
nlohmann::ordered_json environment_json();

}  // namespace duet
