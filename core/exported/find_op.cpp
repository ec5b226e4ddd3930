#include <set>
#include <string>
#include <string_view>
#include "base/detail/text.h"
#include "base/error.h"
#include "core/exported/ops.h"

namespace duet::exported {

namespace {

// Operators that do more than compute: they map files, talk to other processes, or belong to duet itself.
bool is_forbidden(const std::string& space, const std::string& name) {
  static const std::set<std::string> kSpaces = {"duet",
                                                "c10d",
                                                "_c10d_functional",
                                                "_c10d_functional_autograd",
                                                "profiler",
                                                "inductor",
                                                "symm_mem",
                                                "_dtensor",
                                                "fsdp",
                                                "static_runtime",
                                                "_test",
                                                "mkldnn",
                                                "prepacked",
                                                "xnnpack",
                                                "_quantized",
                                                "onednn",
                                                "mkldnn_prepacked",
                                                "rngprims",
                                                "streams",
                                                "debugprims"};
  static const std::set<std::string> kNames = {"from_file",
                                               "_nested_view_from_buffer",
                                               "_nested_view_from_buffer_copy",
                                               "_sparse_coo_tensor_unsafe",
                                               "_sparse_compressed_tensor_unsafe",
                                               "set_data"};
  return kSpaces.count(space) > 0 || kNames.count(name) > 0 || name.starts_with("_sparse");
}

}  // namespace

c10::OperatorHandle find_op(const std::string& target, const std::string& place) {
  const std::string name = target.substr(std::string_view("torch.ops.").size());
  const std::size_t space = name.find('.'), overload = name.rfind('.');
  if (space != std::string::npos && overload > space) {
    const std::string variant = name.substr(overload + 1);
    if (is_forbidden(name.substr(0, space), name.substr(space + 1, overload - space - 1))) {
      throw ConfigError("calls the op " + one_line(target) + (place.empty() ? "" : " at " + place) +
                        ", which does more than compute; export a model without it");
    }
    const auto op = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, space) + "::" + name.substr(space + 1, overload - space - 1),
         variant == "default" ? "" : variant});
    if (op) return *op;
  }
  throw ConfigError("calls the op " + one_line(target) + (place.empty() ? "" : " at " + place) +
                    ", which this program does not have; load the library that defines it, or export without it");
}

}  // namespace duet::exported
