#include <bit>
#include <charconv>
#include <cstdio>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "checkpoint/detail/checkpoint_format.h"

// state.json: {"name": {"int": 7}}, with the type in each value's key. A double has its bits beside the number, which
// JSON cannot hold if it is NaN or infinite; a text that is not UTF-8 is written as the hex digits of its bytes.

namespace duet::checkpoint_format {

namespace {

using nlohmann::json;

std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

template <class T>
T parse_hex(std::string_view digits) {
  T value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 2 * sizeof(T) || error != std::errc() || end != digits.data() + digits.size()) {
    throw json::type_error::create(302, c10::str("'", digits, "' is not ", 2 * sizeof(T), " hex digits"), nullptr);
  }
  return value;
}

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(parse_hex<unsigned char>(std::string_view(hex).substr(i, 2)));
  }
  return bytes;
}

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(json(text).dump());
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

json to_json(const StateValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return {{"bool", *flag}};
  if (const auto* integer = std::get_if<int64_t>(&value)) return {{"int", *integer}};
  if (const auto* number = std::get_if<double>(&value)) {
    char text[32], bits[17];
    std::snprintf(text, sizeof text, "%.17g", *number);
    std::snprintf(bits, sizeof bits, "%016llx", static_cast<unsigned long long>(std::bit_cast<uint64_t>(*number)));
    return {{"float", text}, {"bits", bits}};
  }
  const auto& text = std::get<std::string>(value);
  if (is_utf8(text)) return {{"text", text}};
  return {{"hex", hex_of(text)}};
}

StateValue to_value(const json& value) {
  if (value.contains("bool")) return value.at("bool").get<bool>();
  if (value.contains("int")) {
    const json& integer = value.at("int");
    if (!integer.is_number_integer()) throw json::type_error::create(302, "int is not a whole number", nullptr);
    return integer.get<int64_t>();
  }
  if (value.contains("bits")) return std::bit_cast<double>(parse_hex<uint64_t>(value.at("bits").get<std::string>()));
  if (value.contains("text")) return value.at("text").get<std::string>();
  return bytes_of(value.at("hex").get<std::string>());
}

}  // namespace

std::string encode_values(const std::map<std::string, StateValue>& values) {
  json document = json::object();
  for (const auto& [name, value] : values) {
    if (!is_utf8(name)) {
      throw CheckpointError(c10::str("[CheckpointStore] the value's name '", name, "' is not UTF-8; rename it"));
    }
    document[name] = to_json(value);
  }
  return document.dump(2) + "\n";
}

namespace {

// Checkpoints from before the first release say "update" where it is "step" now.
std::string present_name(const std::string& name) {
  static const std::map<std::string, std::string> kFormerNames = {
      {"trainer.update", "trainer.step"},
      {"trainer.update_in_epoch", "trainer.step_in_epoch"},
      {"trainer.validated_update", "trainer.validated_step"}};
  const auto known = kFormerNames.find(name);
  return known == kFormerNames.end() ? name : known->second;
}

}  // namespace

std::map<std::string, StateValue> decode_values(const std::string& text, const std::string& path) {
  std::map<std::string, StateValue> values;
  std::string at;
  try {
    const json document = json::parse(text);
    for (const auto& [name, value] : document.items()) {
      at = " at '" + name + "'";
      values.emplace(present_name(name), to_value(value));
    }
  } catch (const json::exception& error) {
    throw CheckpointError(c10::str("[CheckpointStore] '", path, "' is not as expected", at, ": ", error.what(),
                                   "; use another checkpoint"));
  }
  return values;
}

}  // namespace duet::checkpoint_format
