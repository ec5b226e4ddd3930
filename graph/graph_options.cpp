#include "graph/graph_options.h"
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

void GraphOptions::validate() const {
  if (cache_bytes <= 0) {
    throw ConfigError(c10::str("[GraphOptions] cache_bytes is ", cache_bytes, ", expected a number of bytes > 0"));
  }
  if (verify_interval < 0) {
    throw ConfigError(c10::str("[GraphOptions] verify_interval is ", verify_interval, ", expected an integer >= 0"));
  }
}

}  // namespace duet
