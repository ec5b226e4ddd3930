#pragma once

#include <functional>
#include <string>
#include <nlohmann/json_fwd.hpp>

namespace duet {

// The document of a text that anybody may have written, as nlohmann::json or ordered_json: at most 64 levels deep, no
// key twice in an object, memory within file_memory(). Throws MalformedFile whose text begins with `what` ("its
// header", "the manifest").
template <class Json>
Json parse_json(const std::string& text, const std::string& what);

// The same for an object of many entries: each is dropped once `take` has seen it, in their order.
using TakeJson = std::function<void(const std::string& name, const nlohmann::json& value)>;
void parse_json_entries(const std::string& text, const std::string& what, const TakeJson& take);

// The same for texts of which some may be no JSON: discarded then.
template <class Json>
Json parse_json_or_discard(const std::string& text);

}  // namespace duet
