#pragma once

namespace duet {

// Fill the registry with duet's own types: models, metrics and constructors, and what the files of their own hold.
void add_builtin_types();
void add_builtin_data();  // datasets and transforms
void add_builtin_hooks();

}  // namespace duet
