#pragma once

#include <cstdint>
#include <string_view>

namespace duet {

// CRC-32C (Castagnoli), as iSCSI and TensorBoard's files use it.
uint32_t crc32c(std::string_view bytes);

}  // namespace duet
