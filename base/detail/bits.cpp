#include "base/detail/bits.h"
#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace duet {

struct Xxh3::State {
  XXH3_state_t xxh3;  // aligned to 64 bytes, which new honours since C++17
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }

Xxh3::~Xxh3() = default;

void Xxh3::update(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(&state_->xxh3, data, bytes);
}

std::string Xxh3::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh3));
  return hex_of({reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest});
}

std::string hex_of(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::string xxh3_hex(const void* data, size_t bytes) {
  Xxh3 hash;
  hash.update(data, bytes);
  return hash.hex();
}

namespace {

at::Tensor host_values(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = host_values(a), y = host_values(b);
  // An empty tensor's pointer may be null, which memcmp must not get.
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string bits_hash(const at::Tensor& values) {
  const at::Tensor host = host_values(values);
  return xxh3_hex(host.const_data_ptr(), host.nbytes());
}

std::vector<std::string> differences(const NamedTensors& a, const NamedTensors& b) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const bool in_both = i < a.size() && i < b.size() && a[i].first == b[i].first;
    if (!in_both || !same_bits(a[i].second, b[i].second)) names.push_back((i < a.size() ? a : b)[i].first);
  }
  return names;
}

}  // namespace duet
