#pragma once

#include <c10/util/StringUtil.h>
#include "../base/error.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace duet {

// Factories by type name: what every registry is made of. Private to cli/.
template <class Factory>
using FactoryTable = std::map<std::string, Factory>;

// Throws ConfigError if the name is empty or taken, in the table or by one of `built_in`, or the factory is empty.
template <class Factory>
void add_factory(FactoryTable<Factory>& table, const char* kind, const std::string& name, Factory factory,
                 const std::vector<std::string>& built_in = {}) {
  if (name.empty() || !factory) {
    throw ConfigError(c10::str("[Registry] found a ", kind, " '", name, "' without name or factory, expected both"));
  }
  const bool taken = std::find(built_in.begin(), built_in.end(), name) != built_in.end();
  if (taken || !table.emplace(name, std::move(factory)).second) {
    throw ConfigError(c10::str("[Registry] the ", kind, " type '", name, "' is registered twice; choose another name"));
  }
}

template <class Factory>
std::vector<std::string> names_of(const FactoryTable<Factory>& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return names;
}

}  // namespace duet
