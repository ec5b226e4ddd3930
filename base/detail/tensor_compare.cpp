#include "base/detail/tensor_compare.h"
#include <algorithm>
#include <cstring>
#include "base/detail/xxh3.h"

namespace duet {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().cpu().contiguous();
  const at::Tensor y = b.detach().cpu().contiguous();
  // An empty tensor's pointer may be null, which memcmp must not get.
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string bits_hash(const at::Tensor& values) {
  const at::Tensor host = values.detach().cpu().contiguous();
  return xxh3_hex(host.const_data_ptr(), host.nbytes());
}

std::string first_difference(const NamedTensors& a, const NamedTensors& b) {
  const std::size_t shared = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < shared; ++i) {
    if (a[i].first != b[i].first || !same_bits(a[i].second, b[i].second)) return a[i].first;
  }
  if (a.size() == b.size()) return {};
  return (a.size() > b.size() ? a : b)[shared].first;
}

}  // namespace duet
