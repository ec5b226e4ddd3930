#include "cli/config/config_json.h"
#include <cmath>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;
using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

Json scalar(const Data& data) {
  const std::string& text = data.text;
  if (data.quoted) return text;
  if (is_null_word(text)) return nullptr;
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  const std::string_view digits = std::string_view(text).substr(text.size() > 1 && text.front() == '+' ? 1 : 0);
  if (const auto whole = parse_number<int64_t>(digits)) return *whole;
  if (const auto real = parse_number<double>(digits); real && std::isfinite(*real)) return *real;
  return text;
}

Json json_of(const Data& data) {
  if (data.kind == Kind::kValue) return scalar(data);
  if (data.kind == Kind::kMap) {
    Json map = Json::object();
    for (const auto& [key, item] : data.items) map[key] = json_of(*item);
    return map;
  }
  if (data.kind != Kind::kList) return nullptr;
  Json list = Json::array();
  for (const auto& entry : data.items) list.push_back(json_of(*entry.second));
  return list;
}

}  // namespace

// By way of the text: the defaults that were read are in it, as text, and nowhere else.
std::string config_json(const ConfigNode& root) {
  return json_of(*parse_yaml(root.dump(), "the resolved config")).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace duet
