#pragma once

#include <string>
#include <vector>
#include "../../base/options.h"
#include "config.h"

namespace duet {

// Reads what `fields` describe from the map `node` into `options`, whose values are the defaults; null reads as absent.
// Throws ConfigError with place and path for a value of another type or out of its range.
void read_fields(const ConfigNode& node, const OptionFields& fields, void* options);

template <Described Options>
Options read_options(const ConfigNode& node, Options options = {}) {
  read_fields(node, Options::fields(), &options);
  return options;
}

// As read_options(), with what only the whole of them shows: no unknown key, no values that do not fit together.
template <Described Options>
Options read_all_options(const ConfigNode& node, Options options = {}) {
  read_fields(node, Options::fields(), &options);
  node.reject_unknown();
  node.located([&] { check_options(options); });
  return options;
}

// A key of a config as `duet help` shows it.
struct ConfigKey {
  std::string path;      // "trainer.max_steps"
  std::string type;      // "integer", "list of numbers", "off, bf16, fp16"
  std::string range;     // "at least 1"; empty: any
  std::string fallback;  // YAML text of the default; empty: none
  std::string meaning;
  bool required = false;
};

// Those of `fields`, with the values of `options` as defaults. `section` goes in front of their names.
std::vector<ConfigKey> keys_of(const OptionFields& fields, const void* options, const std::string& section = "");

template <Described Options>
std::vector<ConfigKey> keys_of(const std::string& section, const Options& options = {}) {
  return keys_of(Options::fields(), &options, section);
}

}  // namespace duet
