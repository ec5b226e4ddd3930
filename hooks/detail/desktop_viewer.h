#pragma once

#include <string>

namespace duet {

// Opens a file with the viewer that the desktop has for its kind, and does not wait for it. Empty: it was opened; else
// why not, as the end of a sentence: "there is no display".
std::string open_on_desktop(const std::string& path);

}  // namespace duet
