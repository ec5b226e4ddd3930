#include "distributed/detail/rank_error.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/detail/error_text.h"

namespace duet {

std::string packed_error(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const SaveRefused& refused) {
    return std::string("r") + refused.what();
  } catch (const Error& other) {
    const char kinds[] = {'e', 'e', 'c', 'd', 'k'};
    const int code = other.exit_code();
    return std::string(1, code >= 0 && code < 5 ? kinds[code] : 'e') + other.what();
  } catch (...) {
    return "e" + text_of(error);
  }
}

void throw_error_of(int64_t rank, const std::string& packed) {
  const std::string text = c10::str("on rank ", rank, ": ", packed.substr(1));
  switch (packed.front()) {
    case 'c':
      throw ConfigError(text);
    case 'd':
      throw DataError(text);
    case 'k':
      throw CheckpointError(text);
    case 'r':
      throw SaveRefused(text);
    default:
      throw Error(text, 1);
  }
}

}  // namespace duet
