#pragma once

#include <string>
#include <ATen/core/Tensor.h>

namespace duet {

// The same values as a contiguous CPU tensor that only holds bytes: no gradient, no lazy negation. Throws DataError
// "[format] tensor 'name' ..." for one that a file of weights cannot hold. Private to core.
at::Tensor plain_tensor(const char* format, const std::string& name, const at::Tensor& tensor);

}  // namespace duet
