#include "cli/runs/run_pictures.h"
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <system_error>
#include <tuple>
#include <utility>

namespace duet {

namespace {

constexpr std::size_t kSamples = 8;  // of a pass

struct PictureFile {
  RunPicture picture;
  std::filesystem::path path;
};

std::optional<PictureFile> named(const std::filesystem::path& path) {
  static const std::regex kName("(val|test|predict)_(.+)_([0-9]{1,18})\\.png");
  std::smatch parts;
  const std::string name = path.filename().string();
  if (!std::regex_match(name, parts, kName)) return std::nullopt;
  return PictureFile{{parts[1], parts[2], std::stoll(parts[3]), ""}, path};
}

// Samples in their order: numbers by their value.
std::tuple<std::string, bool, std::size_t, std::string> place_of(const RunPicture& picture) {
  const bool is_number = picture.sample.find_first_not_of("0123456789") == std::string::npos;
  return {picture.pass, !is_number, is_number ? picture.sample.size() : 0, picture.sample};
}

std::vector<PictureFile> picture_files(const std::string& folder) {
  std::vector<PictureFile> files;
  std::error_code failed;
  std::filesystem::directory_iterator entry(folder + "/vis_data", failed);
  for (const std::filesystem::directory_iterator end; !failed && entry != end; entry.increment(failed)) {
    if (auto file = named(entry->path())) files.push_back(std::move(*file));
  }
  return files;
}

// The newest of each sample first, then the one before, ...
std::vector<PictureFile> by_worth(std::vector<PictureFile> files) {
  std::map<decltype(place_of({})), std::vector<PictureFile>> samples;
  for (PictureFile& file : files) samples[place_of(file.picture)].push_back(std::move(file));
  std::map<std::string, std::vector<std::vector<PictureFile>>> passes;
  for (auto& [key, list] : samples) {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.picture.step > b.picture.step; });
    passes[std::get<0>(key)].push_back(std::move(list));
  }
  std::vector<std::pair<std::size_t, PictureFile>> ranked;
  for (auto& [pass, lists] : passes) {
    const std::size_t count = std::min(kSamples, lists.size());
    for (std::size_t i = 0; i < count; ++i) {
      auto& list = lists[i * lists.size() / count];
      for (std::size_t age = 0; age < list.size(); ++age) ranked.emplace_back(age, std::move(list[age]));
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PictureFile> sorted;
  for (auto& [age, file] : ranked) sorted.push_back(std::move(file));
  return sorted;
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

}  // namespace

RunPictures read_run_pictures(const std::string& folder, std::size_t bytes) {
  RunPictures pictures;
  std::vector<PictureFile> files = picture_files(folder);
  pictures.found = files.size();
  std::size_t used = 0;
  for (PictureFile& file : by_worth(std::move(files))) {
    std::error_code failed;
    const std::uintmax_t size = std::filesystem::file_size(file.path, failed);
    if (failed || size > bytes - used) continue;
    file.picture.png = bytes_of(file.path);
    if (!file.picture.png.starts_with("\x89PNG\r\n")) continue;
    used += std::min(bytes - used, file.picture.png.size());
    pictures.shown.push_back(std::move(file.picture));
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
