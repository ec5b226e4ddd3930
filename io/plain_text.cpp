#include "io/plain_text.h"
#include "base/error.h"

namespace duet {

void require_plain_text(std::string_view text, const std::string& where) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    throw DataError(where + ": found UTF-16 text, expected UTF-8; save it again as UTF-8");
  const std::size_t zero = text.find('\0');
  if (zero == std::string_view::npos) return;
  throw DataError(where + ": found a byte of 0 at position " + std::to_string(zero) +
                  ", which no text has, expected UTF-8; unpack it if it is packed, save it again if it is UTF-16");
}

}  // namespace duet
