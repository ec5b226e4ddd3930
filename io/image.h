#pragma once

#include <string>
#include <string_view>
#include <ATen/core/Tensor.h>

namespace duet {

// Whether the file is called like a picture: .png, .jpg, .jpeg, in any case.
bool is_image_name(const std::string& path);

// A PNG or JPEG file, told apart by its bytes, as uint8 [height, width, 3], RGB. Throws DataError naming the file.
at::Tensor read_image(const std::string& path);

// The pixels of a JPEG file likewise; grey and CMYK pictures are converted. Throws DataError for bytes that are no
// whole JPEG, and for more than 2^28 pixels.
at::Tensor decode_jpeg(std::string_view bytes);

// A mask: a PNG of grey levels or palette places, which are the classes, as int64 [height, width]. Throws DataError
// naming the file, for a picture in colours too.
at::Tensor read_mask(const std::string& path);

}  // namespace duet
