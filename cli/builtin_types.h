#pragma once

namespace duet {

// Fill the registry with duet's own types: models, datasets, metrics and constructors; hooks are a file of their own.
void add_builtin_types();
void add_builtin_hooks();

}  // namespace duet
