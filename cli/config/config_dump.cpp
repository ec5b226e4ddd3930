#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;
using Json = nlohmann::ordered_json;

bool is_plain(const std::string& text) {
  if (text.empty() || text.front() == ' ' || text.back() == ' ' || text.front() == '-') {
    // A leading minus is plain in a number only.
    if (text.size() < 2 || text.front() != '-' || text.back() == ' ') return false;
    if (text[1] != '.' && (text[1] < '0' || text[1] > '9')) return false;
  }
  if (is_null_word(text)) return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '/' || c == '+' || c == '-' || c == ' ';
  });
}

std::string in_quotes(const std::string& text) {
  static const char* kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string flow(const Data& data) {
  if (!data.written.empty()) return in_quotes(data.written);
  if (data.kind == Kind::kValue) return yaml_scalar(data.text, data.quoted);
  if (data.kind == Kind::kNull || data.kind == Kind::kAbsent) return data.fallback.empty() ? "null" : data.fallback;
  const bool map = data.kind == Kind::kMap;
  std::string text;
  for (const auto& [key, item] : data.items) {
    if (item->kind == Kind::kAbsent && item->fallback.empty()) continue;
    text += (text.empty() ? "" : ", ") + (map ? yaml_key(key) + ": " : std::string()) + flow(*item);
  }
  return map ? "{" + text + "}" : "[" + text + "]";
}

// Whether dump() has anything to say about this node, or about what is below.
bool shown(const Data& data);
bool shown_below(const Data& data) {
  return std::any_of(data.items.begin(), data.items.end(), [](const auto& item) { return shown(*item.second); });
}
bool shown(const Data& data) { return data.kind != Kind::kAbsent || !data.fallback.empty() || shown_below(data); }

bool holds_map(const Data& list) {
  return std::any_of(list.items.begin(), list.items.end(),
                     [](const auto& item) { return item.second->kind == Kind::kMap; });
}

// Whether all of it was written in one place.
bool has_one_origin(const Data& data, const std::string& origin) {
  return std::all_of(data.items.begin(), data.items.end(), [&](const auto& item) {
    return item.second->kind == Kind::kAbsent ||
           (item.second->origin == origin && has_one_origin(*item.second, origin));
  });
}

void write_map(const Data& data, const std::string& indent, std::string& out);
void write_item(const std::string& head, const Data& item, const std::string& indent, std::string& out);

void write_list(const Data& data, const std::string& indent, std::string& out) {
  for (const auto& [index, item] : data.items) {
    if (item->kind != Kind::kMap || !shown_below(*item)) {
      write_item(indent + "-", *item, indent, out);
      continue;
    }
    std::string entry;
    write_map(*item, indent + "  ", entry);
    entry[indent.size()] = '-';
    out += entry;
  }
}

// What follows `head`: on its line, or as a block below it.
void write_item(const std::string& head, const Data& item, const std::string& indent, std::string& out) {
  const bool defaults_below = item.kind == Kind::kAbsent && item.fallback.empty();
  if (defaults_below || (item.kind == Kind::kMap && shown_below(item))) {
    out += head + (defaults_below ? "" : "  # " + item.origin) + "\n";
    write_map(item, indent + "  ", out);
  } else if (item.kind == Kind::kList && (holds_map(item) || !has_one_origin(item, item.origin))) {
    out += head + "  # " + item.origin + "\n";
    write_list(item, indent + "  ", out);
  } else {
    const bool is_default = !item.fallback.empty() && item.is_unset();
    out += head + " " + flow(item) + "  # " + (is_default ? "default" : item.origin) + "\n";
  }
}

void write_map(const Data& data, const std::string& indent, std::string& out) {
  for (const auto& [key, item] : data.items) {
    if (shown(*item)) write_item(indent + yaml_key(key) + ":", *item, indent, out);
  }
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

std::string yaml_scalar(const std::string& text, bool quoted) {
  if (!quoted && is_plain(text)) return text;
  std::string escaped;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.compare(at, 2, "${") == 0) escaped += '$';
    escaped += text[at];
  }
  return in_quotes(escaped);
}

std::string yaml_key(const std::string& key) { return is_plain(key) ? key : in_quotes(key); }

std::string ConfigNode::dump() const {
  std::string out;
  write_map(*data_, "", out);
  return out;
}

// By way of the text: the defaults that were read are in it, as text, and nowhere else.
std::string config_json(const ConfigNode& root, Variables variables) {
  const Json json = json_of(*parse_yaml(root.dump(), "the resolved config"), variables);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace duet
