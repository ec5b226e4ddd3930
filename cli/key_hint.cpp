#include "cli/key_hint.h"
#include <algorithm>
#include "base/error.h"
#include "cli/catalog.h"

namespace duet {

namespace {

// "a=1 or b=1"
std::string alternatives(const std::vector<std::string>& keys, const std::string& value) {
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "" : " or ") + key + "=" + value;
  return text;
}

bool is_top_key(const std::string& word) {
  return std::ranges::any_of(keys_of_config(),
                             [&](const ConfigKey& key) { return key.path.substr(0, key.path.find('.')) == word; });
}

}  // namespace

std::vector<std::string> full_keys_of(const std::string& word) {
  std::vector<std::string> keys;
  if (is_top_key(word)) return keys;
  for (const ConfigKey& key : keys_of_config()) {
    if (!word.empty() && key.path.ends_with("." + word)) keys.push_back(key.path);
  }
  return keys;
}

void check_override_keys(const std::vector<std::string>& overrides) {
  for (const std::string& assignment : overrides) {
    const std::size_t equals = assignment.find('=');
    const std::string word = assignment.substr(0, equals);
    if (equals == std::string::npos || word.find('.') != std::string::npos) continue;
    const std::vector<std::string> keys = full_keys_of(word);
    if (keys.empty()) continue;
    throw ConfigError("[Config] command line: '" + word + "' is no key at the top of a config; write " +
                      alternatives(keys, assignment.substr(equals + 1)));
  }
}

std::string hint_for_flag(const std::string& flag) {
  if (!flag.starts_with("--")) return "";
  std::string word = flag.substr(2, flag.find('=') - 2);
  std::ranges::replace(word, '-', '_');
  const bool is_key = word.find('.') != std::string::npos || is_top_key(word);
  const std::vector<std::string> keys = is_key ? std::vector<std::string>{word} : full_keys_of(word);
  return keys.empty() ? "" : ": a value of the config is set by " + alternatives(keys, "VALUE");
}

}  // namespace duet
