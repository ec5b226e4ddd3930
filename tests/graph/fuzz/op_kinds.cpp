#include <sstream>
#include <c10/util/StringUtil.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

void OpTable::by_name(const std::string& names, const std::string& signature, const ByName& how) {
  std::istringstream all(names);
  for (std::string name; all >> name;) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string overload = name.substr(std::min(dot + 1, name.size()));
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(), overload.c_str());
    if (signature[0] != 'm') name += "_" + signature.substr(0, signature.find('>'));
    if (!how.more.empty()) name += "(" + c10::Join(", ", how.more) + ")";
    (*this)(name, signature, [=](Site&) -> Apply {
      return [=](X x) {
        torch::jit::Stack stack;
        for (const Tensor& value : x) stack.emplace_back(how.fit(value));
        stack.insert(stack.end(), how.more.begin(), how.more.end());
        const auto& arguments = op.schema().arguments();
        for (std::size_t i = stack.size(); i < arguments.size(); ++i) {
          stack.push_back(arguments[i].default_value().value());
        }
        op.callBoxed(stack);
        return how.end(stack.at(how.result).toTensor(), x[0]);
      };
    });
  }
}

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
