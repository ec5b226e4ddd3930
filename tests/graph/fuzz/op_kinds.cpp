#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

const std::vector<OpKind>& op_kinds() {
  static const std::vector<OpKind> kinds = [] {
    OpTable add;
    add_view_cases(add);
    add_pointwise_cases(add);
    add_in_place_cases(add);
    add_out_cases(add);
    add_indexing_cases(add);
    add_list_cases(add);
    add_reduction_cases(add);
    add_random_cases(add);
    add_convolution_cases(add);
    add_layer_cases(add);
    add_algebra_cases(add);
    add_dtype_cases(add);
    add_loss_cases(add);
    add_gradient_cases(add);
    add_constant_cases(add);
    add_kept_cases(add);
    add_read_cases(add);
    add_changing_cases(add);
    return add.kinds;
  }();
  return kinds;
}

}  // namespace duet::testing::fuzz
