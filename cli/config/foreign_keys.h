#pragma once

#include <string>

namespace duet {

// What to write instead of a key of mmengine's configs or of Lightning's and HF's trainers: "duet calls it data.train".
// Empty for other keys.
std::string foreign_key(const std::string& key);

}  // namespace duet
