#pragma once

#include <string>
#include <utility>
#include <vector>
#include "cli/config/config_options.h"

namespace duet {

// What configs may hold: the descriptions of what is read from them.

// One kind of what a config calls by `type`.
struct TypeKind {
  std::string name;                            // "optimizer"
  std::string section;                         // where a config names one: "optim_wrapper.optimizer"
  std::vector<std::string> types{};            // registered names
  std::vector<std::string> other_spellings{};  // other spellings, which lists leave out
};

std::vector<TypeKind> type_kinds();

// The keys beside `type` that a type of this kind reads. Empty if it takes none, or was registered without a
// description.
std::vector<ConfigKey> keys_of_type(const TypeKind& kind, const std::string& type);

// The keys of a whole config, but for those that belong to types.
std::vector<ConfigKey> keys_of_config();

// The same by the keys of the top level that hold others; first, without a name, those that hold none.
std::vector<std::pair<std::string, std::vector<ConfigKey>>> config_sections();

}  // namespace duet
