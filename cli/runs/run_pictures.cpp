#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <ATen/core/Tensor.h>
#include "base/detail/pattern.h"
#include "base/error.h"
#include "cli/runs/report_page.h"
#include "io/file_io.h"
#include "io/png.h"

namespace duet {

namespace {

constexpr std::size_t kSamples = 8;                   // of a pass
constexpr int64_t kSmallestSide = 128;                // that a picture is scaled down to
constexpr uint64_t kLargestFile = uint64_t{1} << 28;  // bytes

struct PictureFile {
  RunPicture picture;
  std::filesystem::path path;
  std::size_t age = 0;  // 0: the newest of its sample
};

std::optional<PictureFile> named(const std::filesystem::path& path) {
  static const Pattern kName("(val|test|predict)_(.+)_([0-9]{1,18})\\.png");
  const auto parts = kName.groups_of(path.filename().string());
  if (!parts) return std::nullopt;
  return PictureFile{{.pass = (*parts)[1], .sample = (*parts)[2], .step = std::stoll((*parts)[3])}, path};
}

// Samples in their order: numbers by their value.
std::tuple<std::string, bool, std::size_t, std::string> place_of(const RunPicture& picture) {
  const bool is_number = picture.sample.find_first_not_of("0123456789") == std::string::npos;
  return {picture.pass, !is_number, is_number ? picture.sample.size() : 0, picture.sample};
}

// Seconds since 1970; infinite for a file that is gone meanwhile.
double written_at(const std::filesystem::path& path) {
  std::error_code failed;
  const auto time = std::filesystem::last_write_time(path, failed);
  if (failed) return std::numeric_limits<double>::infinity();
  using Seconds = std::chrono::duration<double>;
  return Seconds(decltype(time)::clock::to_sys(time).time_since_epoch()).count();
}

std::vector<PictureFile> picture_files(const std::string& folder, double began) {
  std::vector<PictureFile> files;
  std::error_code failed;
  std::filesystem::directory_iterator entry(folder + "/vis_data", failed);
  for (const std::filesystem::directory_iterator end; !failed && entry != end; entry.increment(failed)) {
    auto file = named(entry->path());
    if (file && (began <= 0 || written_at(file->path) >= began)) files.push_back(std::move(*file));
  }
  return files;
}

// The newest of each sample first, then the one before, ...; of many samples some that are spread over their pass.
std::vector<PictureFile> by_worth(std::vector<PictureFile> files) {
  std::map<std::string, std::map<decltype(place_of({})), std::vector<PictureFile>>> passes;
  for (PictureFile& file : files) passes[file.picture.pass][place_of(file.picture)].push_back(std::move(file));
  std::vector<PictureFile> ranked;
  for (auto& [pass, samples] : passes) {
    const std::size_t count = std::min(kSamples, samples.size());
    for (std::size_t i = 0; i < count; ++i) {
      auto& list = std::next(samples.begin(), static_cast<std::ptrdiff_t>(i * samples.size() / count))->second;
      std::ranges::sort(list, std::greater(), [](const PictureFile& file) { return file.picture.step; });
      for (PictureFile& file : list) {
        file.age = static_cast<std::size_t>(&file - list.data());
        ranked.push_back(std::move(file));
      }
    }
  }
  std::ranges::stable_sort(ranked, {}, &PictureFile::age);
  return ranked;
}

// Each pixel the mean of `factor` x `factor`; what is over at the right and below is left out.
at::Tensor shrunk(const at::Tensor& pixels, int64_t factor) {
  const int64_t height = pixels.size(0) / factor, width = pixels.size(1) / factor;
  const at::Tensor whole = pixels.narrow(0, 0, height * factor).narrow(1, 0, width * factor);
  const at::Tensor sums = whole.reshape({height, factor, width, factor, 3}).sum({1, 3}, /*keepdim=*/false, at::kInt);
  return sums.div(static_cast<double>(factor * factor)).round().to(at::kByte);
}

// The largest form of the picture that takes at most `bytes`; if there is none, the smallest one.
void fit(RunPicture& picture, std::size_t bytes) {
  if (picture.png.size() <= bytes) return;
  const at::Tensor pixels = decode_png(picture.png);
  const int64_t side = std::min(pixels.size(0), pixels.size(1));
  const double ratio = static_cast<double>(picture.png.size()) / static_cast<double>(std::max<std::size_t>(bytes, 1));
  const int64_t last = side / kSmallestSide, first = std::min(last, static_cast<int64_t>(std::sqrt(ratio)));
  for (int64_t factor = std::max<int64_t>(2, first); factor <= last && picture.png.size() > bytes; ++factor) {
    picture.png = encode_png(shrunk(pixels, factor));
    picture.shrink = factor;
  }
}

// False for a file that cannot be shown.
bool read_picture(PictureFile& file, std::size_t bytes) try {
  file.picture.png = file_io::read_text(file.path.string(), kLargestFile);
  file.picture.legend = png_description(file.picture.png);
  fit(file.picture, bytes);
  return true;
} catch (const file_io::IoError&) {
  return false;
} catch (const DataError&) {
  return false;
}

}  // namespace

RunPictures read_run_pictures(const std::string& folder, std::size_t bytes, double began) {
  RunPictures pictures;
  std::vector<PictureFile> files = picture_files(folder, began);
  pictures.found = files.size();
  files = by_worth(std::move(files));
  const auto is_newest = [](const PictureFile& file) { return file.age == 0; };
  auto newest = static_cast<std::size_t>(std::count_if(files.begin(), files.end(), is_newest));
  const std::size_t usual = bytes / std::max<std::size_t>(newest, 1);
  std::size_t left = bytes;
  for (PictureFile& file : files) {
    const std::size_t room = is_newest(file) ? left / newest-- : usual;
    if (!read_picture(file, room)) {
      ++pictures.unreadable;
    } else if (file.picture.png.size() <= left) {
      left -= file.picture.png.size();
      pictures.shown.push_back(std::move(file.picture));
    } else if (!is_newest(file)) {
      break;
    }
  }
  std::sort(pictures.shown.begin(), pictures.shown.end(), [](const RunPicture& a, const RunPicture& b) {
    return std::pair(place_of(a), a.step) < std::pair(place_of(b), b.step);
  });
  return pictures;
}

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    uint32_t word = 0;
    for (std::size_t i = 0; i < 3; ++i) word = word << 8 | (i < count ? static_cast<uint8_t>(bytes[at + i]) : 0);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? kDigits[word >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

}  // namespace duet
