#pragma once

#include <string_view>
#include <ATen/core/Tensor.h>

namespace duet {

// The pixels of a JPEG file as uint8 [height, width, 3], RGB; grey and CMYK pictures are converted. Throws DataError
// for bytes that are no whole JPEG, and for more than 2^28 pixels.
at::Tensor decode_jpeg(std::string_view bytes);

}  // namespace duet
