#pragma once

#include <optional>
#include <string>
#include <nlohmann/json.hpp>
#include "base/error.h"

// What Dataset::encoding() gives, as JSON: {"type": "Csv", ...}.
namespace duet::encoding_json {

using Json = nlohmann::ordered_json;

// A text of the user's. JSON holds UTF-8 alone: other bytes are a list of their numbers.
Json of_text(const std::string& text);
std::string text_of(const Json& json);

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
