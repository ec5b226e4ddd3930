#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>
#include "base/error.h"

// What Dataset::encoding() gives, as JSON: {"type": "Csv", ...}.
namespace duet::encoding_json {

using Json = nlohmann::ordered_json;

// A text of the user's. JSON holds UTF-8 alone: other bytes are a list of their numbers.
inline Json of_text(const std::string& text) {
  Json json = text;
  try {
    json.dump();
    return json;
  } catch (const Json::type_error&) {
    return std::vector<uint8_t>(text.begin(), text.end());
  }
}
inline std::string text_of(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  const auto bytes = json.get<std::vector<uint8_t>>();
  return {bytes.begin(), bytes.end()};
}

// What `read` makes of the encoding of a dataset of this type; nothing if it is of another one, or empty. Throws
// CheckpointError if it meets something else than it expects.
template <class Read>
auto read_encoding(const std::string& encoding, const std::string& type, Read read)
    -> std::optional<decltype(read(Json()))> {
  const Json json = encoding.empty() ? Json() : Json::parse(encoding, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("type") || json["type"] != type) return std::nullopt;
  try {
    return read(json);
  } catch (const Json::exception& error) {
    throw CheckpointError("[" + type + "] found the encoding of the data in the checkpoint damaged (" + error.what() +
                          "), expected what duet has saved; use another checkpoint");
  }
}

}  // namespace duet::encoding_json
