#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/options.h"

namespace duet {

// A factory, and the keys that it reads where it says so.
template <class Factory>
struct Registered {
  Factory make;
  std::optional<AnyOptions> options;
};

// By type name: what every registry is made of. Private to cli/.
template <class Factory>
using FactoryTable = std::map<std::string, Registered<Factory>>;

// Throws ConfigError if the name is empty or taken, in the table or by one of `built_in`, or the factory is empty.
template <class Factory>
void add_factory(FactoryTable<Factory>& table, const char* kind, const std::string& name, Factory factory,
                 std::optional<AnyOptions> options, const std::vector<std::string>& built_in = {}) {
  if (name.empty() || !factory) {
    throw ConfigError(c10::str("[Registry] found a ", kind, " '", name, "' without name or factory, expected both"));
  }
  const bool taken = std::find(built_in.begin(), built_in.end(), name) != built_in.end();
  if (taken || !table.emplace(name, Registered<Factory>{std::move(factory), std::move(options)}).second) {
    throw ConfigError(c10::str("[Registry] the ", kind, " type '", name, "' is registered twice; choose another name"));
  }
}

template <class Factory>
const AnyOptions* options_in(const FactoryTable<Factory>& table, const std::string& name) {
  const auto found = table.find(name);
  return found == table.end() || !found->second.options ? nullptr : &*found->second.options;
}

template <class Factory>
std::vector<std::string> names_of(const FactoryTable<Factory>& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return names;
}

}  // namespace duet
