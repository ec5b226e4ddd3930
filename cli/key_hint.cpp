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

// The keys that a word of the command line stands for: itself where it stands at the top of a config, else those that
// it is the last part of: "optim_wrapper.optimizer.lr" for "lr".
std::vector<std::string> keys_meant_by(const std::string& word) {
  std::vector<std::string> keys;
  for (const ConfigKey& key : keys_of_config()) {
    if (key.path.substr(0, key.path.find('.')) == word) return {word};
    if (key.path.ends_with("." + word)) keys.push_back(key.path);
  }
  return keys;
}

}  // namespace

void check_override_keys(const std::vector<std::string>& overrides) {
  for (const std::string& assignment : overrides) {
    const std::size_t equals = assignment.find('=');
    const std::string word = assignment.substr(0, equals);
    if (equals == std::string::npos || word.find('.') != std::string::npos) continue;
    const std::vector<std::string> keys = keys_meant_by(word);
    if (keys.empty() || keys.front() == word) continue;
    throw ConfigError("[Config] command line: '" + word + "' is no key at the top of a config; write " +
                      alternatives(keys, assignment.substr(equals + 1)));
  }
}

std::string hint_for_flag(const std::string& flag) {
  if (!flag.starts_with("--")) return "";
  std::string word = flag.substr(2, flag.find('=') - 2);
  std::ranges::replace(word, '-', '_');
  const bool is_path = word.find('.') != std::string::npos;
  const std::vector<std::string> keys = is_path ? std::vector<std::string>{word} : keys_meant_by(word);
  return keys.empty() ? "" : ": a value of the config is set by " + alternatives(keys, "VALUE");
}

}  // namespace duet
