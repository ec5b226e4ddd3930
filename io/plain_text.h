#pragma once

#include <string>
#include <string_view>

namespace duet {

// Throws DataError, with `where` before it, for what is no text of bytes: UTF-16, a packed file, any other with a 0.
void require_plain_text(std::string_view text, const std::string& where);

}  // namespace duet
