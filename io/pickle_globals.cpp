#include <unordered_map>
#include "io/pickle.h"
#include "io/plain_tensor.h"

namespace duet::pickle {

namespace {

struct Global {
  const char* name;
  Role role;
};

// What PyTorch's weights_only loader allows and weights need, and what stands beside the weights in training
// checkpoints (mmengine's message hub, NumPy scores, command lines). Nothing here is ever called.
constexpr Global kGlobals[] = {
    {"collections.OrderedDict", Role::kDict},
    {"collections.Counter", Role::kDict},
    {"torch.Size", Role::kSequence},
    {"builtins.set", Role::kSequence},
    {"__builtin__.set", Role::kSequence},
    {"_codecs.encode", Role::kBytes},
    {"torch.ComplexFloatStorage", Role::kStorageClass},
    {"torch.ComplexDoubleStorage", Role::kStorageClass},
    {"torch.complex64", Role::kDtype},
    {"torch.complex128", Role::kDtype},
    {"torch._utils._rebuild_tensor", Role::kTensorV1},
    {"torch._utils._rebuild_tensor_v2", Role::kTensor},
    {"torch._utils._rebuild_parameter", Role::kParameter},
    {"torch._utils._rebuild_parameter_with_state", Role::kParameter},
    {"torch._tensor._rebuild_from_type_v2", Role::kSubclass},
    {"torch.Tensor", Role::kOpaque},
    {"torch.nn.parameter.Parameter", Role::kOpaque},
    {"torch.device", Role::kOpaque},
    {"numpy.dtype", Role::kOpaque},
    {"numpy.ndarray", Role::kOpaque},
    {"numpy.core.multiarray.scalar", Role::kOpaque},
    {"numpy.core.multiarray._reconstruct", Role::kOpaque},
    {"numpy._core.multiarray.scalar", Role::kOpaque},
    {"numpy._core.multiarray._reconstruct", Role::kOpaque},
    {"mmengine.logging.history_buffer.HistoryBuffer", Role::kOpaque},
    {"__builtin__.getattr", Role::kOpaque},  // of mmengine's HistoryBuffer: names its methods
    {"builtins.getattr", Role::kOpaque},
    {"argparse.Namespace", Role::kOpaque},
    {"pathlib.PosixPath", Role::kOpaque},
    {"datetime.datetime", Role::kOpaque},
};

}  // namespace

Role role_of(const std::string& global) {
  static const auto roles = [] {
    std::unordered_map<std::string, Role> names;
    for (const Global& known : kGlobals) names.emplace(known.name, known.role);
    for (const FileType& type : kFileTypes) {
      names.emplace(std::string("torch.") + type.storage_class, Role::kStorageClass);
      names.emplace(std::string("torch.") + type.dtype, Role::kDtype);
    }
    return names;
  }();
  const auto found = roles.find(global);
  return found == roles.end() ? Role::kForbidden : found->second;
}

}  // namespace duet::pickle
