#include "data/detail/encoding_json.h"
#include <vector>

namespace duet::encoding_json {

Json of_text(const std::string& text) {
  Json json = text;
  try {
    json.dump();
    return json;
  } catch (const Json::type_error&) {
    return std::vector<uint8_t>(text.begin(), text.end());
  }
}

std::string text_of(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  const auto bytes = json.get<std::vector<uint8_t>>();
  return {bytes.begin(), bytes.end()};
}

}  // namespace duet::encoding_json
