#include <algorithm>
#include <cmath>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/emitter.h>
#include <yaml-cpp/emittermanip.h>
#include "base/detail/text.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;
using Json = nlohmann::ordered_json;

// With "$${" for "${".
std::string escaped(std::string text) {
  c10::ReplaceAll(text, "${", "$${");
  return text;
}

void write_value(YAML::Emitter& out, const OptionValue& value) {
  const auto write_list = [&](const auto& items) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& item : items) write_value(out, item);
    out << YAML::EndSeq;
  };
  if (const auto* words = std::get_if<std::vector<std::string>>(&value)) return write_list(*words);
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return write_list(*numbers);
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) return write_list(*integers);
  const auto* number = std::get_if<double>(&value);
  const bool is_infinite = number != nullptr && std::isinf(*number);
  out << (is_infinite ? *number < 0 ? "-.inf" : ".inf" : escaped(text_of(value)));
}

bool has_default(const Data& data) { return data.fallback.index() != 0; }

// Whether dump() has anything to say about this node, or about what is below.
bool is_shown(const Data& data);
bool is_shown_below(const Data& data) {
  return std::any_of(data.items.begin(), data.items.end(), [](const auto& item) { return is_shown(*item.second); });
}
bool is_shown(const Data& data) { return data.kind != Kind::kAbsent || has_default(data) || is_shown_below(data); }

void write_scalar(YAML::Emitter& out, const Data& data) {
  if (!data.written.empty()) {
    out << YAML::DoubleQuoted << data.written;
  } else if (data.kind == Kind::kValue) {
    if (data.quoted) out << YAML::DoubleQuoted;
    out << escaped(data.text);
  } else if (has_default(data)) {
    write_value(out, data.fallback);
  } else {
    out << YAML::Null;
  }
}

// Each item of a list has a line of its own if one of them is no scalar, or comes from elsewhere.
bool is_block(const Data& list) {
  return std::any_of(list.items.begin(), list.items.end(), [&](const auto& item) {
    return item.second->kind == Kind::kMap || item.second->kind == Kind::kList || item.second->origin != list.origin;
  });
}

void write_map(YAML::Emitter& out, const Data& data);

// What follows a key or a dash, with its origin: on that line, or as a block below it.
void write_node(YAML::Emitter& out, const Data& data) {
  if (is_shown_below(data) && data.kind != Kind::kList) {
    if (data.kind == Kind::kMap) out << YAML::Comment(data.origin);
    return write_map(out, data);
  }
  if (data.kind == Kind::kList && is_block(data)) {
    out << YAML::Comment(data.origin) << YAML::BeginSeq;
    for (const auto& [index, item] : data.items) {
      item->kind == Kind::kMap&& is_shown_below(*item) ? write_map(out, *item) : write_node(out, *item);
    }
    out << YAML::EndSeq;
    return;
  }
  if (data.kind == Kind::kList) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& [index, item] : data.items) write_scalar(out, *item);
    out << YAML::EndSeq;
  } else if (data.kind == Kind::kMap) {
    out << YAML::Flow << YAML::BeginMap << YAML::EndMap;
  } else {
    write_scalar(out, data);
  }
  out << YAML::Comment(has_default(data) && data.is_unset() ? "default" : data.origin);
}

void write_map(YAML::Emitter& out, const Data& data) {
  out << YAML::BeginMap;
  for (const auto& [key, item] : data.items) {
    if (!is_shown(*item)) continue;
    out << YAML::Key << key << YAML::Value;
    write_node(out, *item);
  }
  out << YAML::EndMap;
}

Json scalar(const Data& data, Variables variables) {
  if (variables == Variables::kNamed && !data.written.empty()) return data.written;
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

Json json_of(const Data& data, Variables variables) {
  if (data.kind == Kind::kValue) return scalar(data, variables);
  if (data.kind == Kind::kMap) {
    Json map = Json::object();
    for (const auto& [key, item] : data.items) map[key] = json_of(*item, variables);
    return map;
  }
  if (data.kind != Kind::kList) return nullptr;
  Json list = Json::array();
  for (const auto& entry : data.items) list.push_back(json_of(*entry.second, variables));
  return list;
}

}  // namespace

std::string yaml_text(const OptionValue& value) {
  YAML::Emitter out;
  write_value(out, value);
  return out.c_str();
}

std::string ConfigNode::dump() const {
  if (!is_shown_below(*data_)) return "";
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  write_map(out, *data_);
  return std::string(out.c_str()) + "\n";
}

// By way of the text: the defaults that were read are in it, as text, and nowhere else.
std::string config_json(const ConfigNode& root, Variables variables) {
  const Json json = json_of(*parse_yaml(root.dump(), "the resolved config"), variables);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace duet
