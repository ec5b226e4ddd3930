#pragma once

#include <string>
#include <string_view>
#include <ATen/core/Tensor.h>

namespace duet {

// Pictures are uint8 [height, width, 3], RGB, on the CPU. DataError names what is wrong with one that is not, and with
// a file that cannot be written.

// The bytes of a PNG file that holds exactly these pixels, and what they show: UTF-8 without zero bytes, or nothing.
std::string encode_png(const at::Tensor& pixels, const std::string& description = "");
// The file appears complete or not at all; its folder exists.
void write_png(const std::string& path, const at::Tensor& pixels, const std::string& description = "");

// Grey, palette and 16-bit pictures come back as RGB of 8 bits, of 16 the upper ones. Transparency and gamma are left
// aside. At most 2^28 pixels.
at::Tensor decode_png(std::string_view bytes);
// The description before the pixels; empty if there is none.
std::string png_description(std::string_view bytes);
// The numbers that a grey or palette picture of 1 to 16 bits holds, as int64 [height, width]: the classes of a mask.
// DataError for a picture in colours.
at::Tensor decode_png_levels(std::string_view bytes);

}  // namespace duet
