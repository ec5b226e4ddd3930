#pragma once

#include <string>
#include "cli/config/config_options.h"

namespace duet {

// Every key of a config and of every type as Markdown: a page for each first-level heading. From the descriptions that
// `duet help` prints.
std::string config_reference();

// A value that the key may have, in YAML.
std::string example_of(const ConfigKey& key);

}  // namespace duet
