#include "io/plain_tensor.h"
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "io/safetensors.h"

namespace duet {

at::Tensor plain_tensor(const char* format, const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(c10::str("[", format, "] tensor '", name, "' ", what));
  };
  if (!tensor.defined()) refuse("is undefined; give it a value");
  if (tensor.layout() != at::kStrided || tensor.is_meta()) {
    refuse("has no dense data; call to_dense() on a sparse tensor, materialise one on the meta device");
  }
  if (safetensors_dtype(tensor.scalar_type()) == nullptr) {
    refuse(c10::str("is ", tensor.scalar_type(),
                    ", expected a type the format has (F64 F32 F16 BF16 I64 I32 I16 I8 U8 "
                    "BOOL); convert it, e.g. complex numbers with view_as_real"));
  }
  return tensor.detach().to(at::kCPU).resolve_neg().contiguous();
}

}  // namespace duet
