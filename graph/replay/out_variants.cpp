#include "graph/replay/out_variants.h"
#include <unordered_map>
#include <vector>

namespace duet {

namespace {

const std::vector<c10::OperatorName>& overloads_of(const std::string& name) {
  static const auto* by_name = [] {
    auto* map = new std::unordered_map<std::string, std::vector<c10::OperatorName>>();
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) (*map)[op.name].push_back(op);
    return map;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto found = by_name->find(name);
  return found == by_name->end() ? none : found->second;
}

bool is_out_variant_of(const c10::FunctionSchema& candidate, const c10::FunctionSchema& base) {
  const auto& arguments = candidate.arguments();
  const std::size_t inputs = base.arguments().size();
  if (arguments.size() != inputs + base.returns().size()) return false;
  for (std::size_t i = 0; i < inputs; ++i) {
    if (arguments[i].name() != base.arguments()[i].name() || *arguments[i].type() != *base.arguments()[i].type())
      return false;
    if (arguments[i].alias_info() != nullptr) return false;
  }
  for (std::size_t i = inputs; i < arguments.size(); ++i) {
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (!written || arguments[i].type()->kind() != c10::TypeKind::TensorType) return false;
  }
  return true;
}

}  // namespace

std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& op, c10::DispatchKey backend) {
  for (const auto& result : op.schema().returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType || result.alias_info() != nullptr) return std::nullopt;
  }
  if (op.schema().returns().empty()) return std::nullopt;
  for (const c10::OperatorName& name : overloads_of(op.schema().name())) {
    const auto candidate = c10::Dispatcher::singleton().findSchema(name);
    if (!candidate || !candidate->hasSchema() || !is_out_variant_of(candidate->schema(), op.schema())) continue;
    if (candidate->hasKernelForDispatchKey(backend)) return candidate;
  }
  return std::nullopt;
}

}  // namespace duet
