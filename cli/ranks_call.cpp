#include "base/detail/text.h"
#include "base/error.h"
#include "cli/ranks.h"

namespace duet {

namespace {

using Words = std::vector<std::string>;

// The value of "--name value" or "--name=value"; nothing if the flag is not there.
std::optional<std::string> value_of(const Words& words, const std::string& name) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == name) return i + 1 < words.size() ? words[i + 1] : std::string();
    if (words[i].starts_with(name + "=")) return words[i].substr(name.size() + 1);
  }
  return std::nullopt;
}

template <class Number>
std::optional<Number> number_of(const Words& words, const std::string& name) {
  const std::optional<std::string> text = value_of(words, name);
  if (!text) return std::nullopt;
  if (const std::optional<Number> value = parse_number<Number>(*text)) return value;
  throw ConfigError("[Launch] found " + name + " '" + *text + "'");
}

LaunchFlags flags_in(const Words& words) {
  LaunchFlags flags;
  flags.rank = number_of<int64_t>(words, "--rank");
  flags.world_size = number_of<int64_t>(words, "--world-size");
  flags.local_rank = number_of<int64_t>(words, "--local-rank");
  flags.master_address = value_of(words, "--master-addr");
  flags.master_port = number_of<int>(words, "--master-port");
  return flags;
}

}  // namespace

std::optional<Launch> launch_in(const Words& words) {
  try {
    const Launch launch = read_launch(flags_in(words));
    if (launch.world_size > 1) return launch;
  } catch (const ConfigError&) {
    // Nobody can be told: where the others are is what is wrong.
  }
  return std::nullopt;
}

}  // namespace duet
