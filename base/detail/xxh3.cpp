#include "base/detail/xxh3.h"

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
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string xxh3_hex(const void* data, size_t bytes) {
  Xxh3 hash;
  hash.update(data, bytes);
  return hash.hex();
}

}  // namespace duet
