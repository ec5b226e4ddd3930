#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/pattern.h"
#include "base/error.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

constexpr std::string_view kOpen = "${";

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// The text with its references filled in.
struct Filled {
  std::string text;
  std::string environment;  // ", env A, env B unset"
  bool is_whole = false;    // it was one reference and nothing else
  bool has_value = false;   // of a variable that is set
  bool is_text = false;     // a default in quotes, whatever it looks like
};

// Adds what `reference`, "${env:NAME}" or "${env:NAME,default}", stands for.
void look_up(const Data& data, const std::string& reference, Filled& filled) {
  static const Pattern kReference(R"(\$\{(?:oc\.)?env:([A-Za-z_][A-Za-z0-9_]*)(,[^{}]*)?\})");
  const auto parts = kReference.groups_of(reference);
  if (!parts) {
    fail_at(data, c10::str("has '", reference,
                           "', expected ${env:NAME} or ${env:NAME,default}, which are all that is filled in; write $${ "
                           "for the characters ${"));
  }
  const std::string &name = (*parts)[1], &fallback = (*parts)[2];
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr && fallback.empty()) {
    fail_at(data, c10::str("asks for the environment variable ", name,
                           ", which is not set; set it, or give a default as in ${env:", name, ",value}"));
  }
  std::string standing = value != nullptr ? value : trimmed(fallback.substr(1));
  const bool in_quotes = standing.size() > 1 && (standing.front() == '\'' || standing.front() == '"');
  filled.is_text = value == nullptr && in_quotes && standing.back() == standing.front();
  filled.text += filled.is_text ? standing.substr(1, standing.size() - 2) : standing;
  filled.environment += ", env " + name + (value != nullptr ? "" : " unset");
  filled.has_value = filled.has_value || value != nullptr;
}

// What a variable holds is not looked into.
Filled filled_in(const Data& data) {
  const std::string& text = data.text;
  Filled filled;
  for (std::size_t at = 0; at < text.size();) {
    if (text.compare(at, 3, "$${") == 0) {
      filled.text += kOpen;
      at += 3;
    } else if (text.compare(at, 2, kOpen) == 0) {
      const std::size_t end = std::min(text.find('}', at), text.size() - 1);
      const std::string reference = text.substr(at, end + 1 - at);
      look_up(data, reference, filled);
      filled.is_whole = reference.size() == text.size();
      at += reference.size();
    } else {
      filled.text += text[at++];
    }
  }
  return filled;
}

// What is no secret: true, false, null. A rerun of the saved config has them without the environment.
bool is_plain_word(const std::string& text) {
  static constexpr std::string_view kWords[] = {"true", "True", "false", "False", "on", "off", "yes", "no"};
  return is_null_word(text) || std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords);
}

}  // namespace

bool is_null_word(const std::string& text) { return text == "null" || text == "Null" || text == "NULL" || text == "~"; }

void expand_environment(Data& data) {
  if (data.kind != Kind::kValue) return;
  // {{ fileDirname }}, {{_base_.key}} and {{$NAME:default}} would be taken literally.
  static const Pattern kVariable(R"(\{\{\s*(file|_base_\.|\$[A-Za-z_]))");
  for (std::size_t at = data.text.find("{{"); at != std::string::npos; at = data.text.find("{{", at + 1)) {
    if (kVariable.prefix_of(data.text.substr(at, 100)).empty()) continue;
    fail_at(data, "has '" + data.text +
                      "', of which mmengine's {{...}} is not filled in, expected a value; write ${env:NAME,default}, "
                      "and inherit a base's values with _base_: FILE");
  }
  if (data.text.find(kOpen) == std::string::npos) return;
  const Filled filled = filled_in(data);
  data.origin += filled.environment;
  data.quoted = !filled.is_whole || filled.is_text;
  const std::string written = std::exchange(data.text, data.quoted ? filled.text : trimmed(filled.text));
  // Quotes are no matter then: between braces and brackets YAML itself asks for them.
  data.quoted = data.quoted || data.text.empty();
  if (filled.has_value && (data.quoted || !is_plain_word(data.text))) data.written = written;
  if (data.quoted || !is_null_word(data.text)) return;
  data.kind = Kind::kNull;
  data.text.clear();
}

}  // namespace duet
