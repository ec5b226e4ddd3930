#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <c10/util/StringUtil.h>
#include "base/detail/pattern.h"
#include "base/error.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

constexpr std::string_view kOpen = "${";
constexpr int kMaxReferenceDepth = 16;

struct Filled {
  std::string text;
  bool quoted = false;      // a default in quotes: text, whatever it looks like
  std::string environment;  // ", env A, env B unset"
  bool has_value = false;   // of a variable that is set
};

// One pass over a value, from left to right.
class Filler {
 public:
  explicit Filler(const Data& data) : data_(data) {}

  Filled fill(std::string_view text) {
    Filled filled;
    for (std::size_t at = 0; at < text.size();) {
      if (text.substr(at, 3) == "$${") {
        filled.text += kOpen;
        at += 3;
      } else if (text.substr(at, 2) == kOpen) {
        const std::size_t end = closing(text, at);
        const Filled part = look_up(text.substr(at + 2, end - at - 2));
        filled.text += part.text;
        filled.quoted = part.quoted && at == 0 && end + 1 == text.size();
        filled.environment += part.environment;
        filled.has_value = filled.has_value || part.has_value;
        at = end + 1;
      } else {
        filled.text += text[at++];
      }
    }
    return filled;
  }

  // Whether the text is one reference and nothing else.
  bool is_reference(std::string_view text) const {
    return text.substr(0, 2) == kOpen && closing(text, 0) + 1 == text.size();
  }

 private:
  std::size_t closing(std::string_view text, std::size_t begin) const {
    int depth = 0;
    for (std::size_t at = begin + 1; at < text.size(); ++at) {
      if (text[at] == '{') ++depth;
      if (text[at] == '}' && --depth == 0) return at;
    }
    fail_at(data_, c10::str("has '", text.substr(begin),
                            "' without a closing }, expected ${env:NAME} or ${env:NAME,default}; "
                            "write $${ for the characters ${"));
  }

  // What is between the braces: env:NAME or env:NAME,default.
  Filled look_up(std::string_view inside) {
    const std::size_t colon = inside.find(':');
    const std::string_view resolver = inside.substr(0, colon);
    if (colon == std::string_view::npos || (resolver != "env" && resolver != "oc.env")) refuse(inside);
    const std::size_t comma = inside.find(',', colon);
    const std::string name(inside.substr(colon + 1, comma - std::min(comma, colon + 1)));
    check_name(name, inside);
    if (const char* value = std::getenv(name.c_str())) return {value, false, ", env " + name, true};
    if (comma == std::string_view::npos) {
      fail_at(data_, c10::str("asks for the environment variable ", name,
                              ", which is not set; set it, or give a default as in ${env:", name, ",value}"));
    }
    Filled filled = unquoted(inside.substr(comma + 1));
    filled.environment = ", env " + name + " unset" + filled.environment;
    return filled;
  }

  Filled unquoted(std::string_view text) {
    if (++depth_ > kMaxReferenceDepth)
      fail_at(data_, c10::str("nests ${...} in more than ", kMaxReferenceDepth, " defaults, expected fewer"));
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    const bool quoted =
        text.size() >= 2 && text.front() == text.back() && (text.front() == '\'' || text.front() == '"');
    Filled filled = fill(quoted ? text.substr(1, text.size() - 2) : text);
    filled.quoted = filled.quoted || quoted;
    --depth_;
    return filled;
  }

  void check_name(const std::string& name, std::string_view inside) const {
    bool valid = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0;
    for (const char c : name) valid = valid && (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_');
    if (!valid) refuse(inside);
  }

  [[noreturn]] void refuse(std::string_view inside) const {
    fail_at(data_, c10::str("has '${", inside,
                            "}', expected ${env:NAME} or ${env:NAME,default}, which are all that is filled in; "
                            "write $${ for the characters ${"));
  }

  const Data& data_;
  int depth_ = 0;  // of defaults within defaults
};

// mmengine's variables, {{ fileDirname }}, {{ $NAME:default }} and {{ _base_.key }}, would be taken literally.
void refuse_variables(const Data& data) {
  constexpr std::size_t kLongest = 200;
  static const Pattern kVariable(
      R"(\{\{\s*(file(Dirname|Basename|BasenameNoExtension|Extname)|_base_\.[^{}]*|\$[^{}]*)\s*\}\})");
  for (std::size_t at = data.text.find("{{"); at != std::string::npos; at = data.text.find("{{", at + 1)) {
    const std::string variable = kVariable.prefix_of(data.text.substr(at, kLongest));
    if (variable.empty()) continue;
    fail_at(data, c10::str("has '", variable,
                           "', which is not filled in, expected ${env:NAME} or ${env:NAME,default} for what "
                           "differs between machines; a base's values are inherited with _base_: FILE"));
  }
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// What is no secret: true, false, null. A rerun of the saved config has them without the environment.
bool is_plain_word(const std::string& text) {
  static constexpr std::string_view kWords[] = {"true", "True", "false", "False", "on", "off", "yes", "no"};
  return is_null_word(text) || std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords);
}

}  // namespace

bool is_null_word(const std::string& text) { return text == "null" || text == "Null" || text == "NULL" || text == "~"; }

void expand_environment(Data& data) {
  if (data.kind == Kind::kValue) refuse_variables(data);
  if (data.kind != Kind::kValue || data.text.find(kOpen) == std::string::npos) return;
  Filler filler(data);
  // Quotes are no matter then: between braces and brackets YAML itself asks for them.
  const bool whole = filler.is_reference(data.text);
  const Filled filled = filler.fill(data.text);
  data.origin += filled.environment;
  const std::string written = data.text;
  data.text = whole && !filled.quoted ? trimmed(filled.text) : filled.text;
  data.quoted = !whole || filled.quoted || data.text.empty();
  if (filled.has_value && (data.quoted || !is_plain_word(data.text))) data.written = written;
  if (data.quoted || !is_null_word(data.text)) return;
  data.kind = Kind::kNull;
  data.text.clear();
}

}  // namespace duet
