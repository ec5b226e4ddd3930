#include <algorithm>
#include <filesystem>
#include <iostream>
#include <random>
#include <gtest/gtest.h>
#include <zlib.h>
#include "base/error.h"
#include "io/pt_file.h"
#include "io/zip_archive.h"
#include "tests/support/expect_error.h"
#include "tests/support/pt_files.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

// The opcodes for keeping and recalling the value on top.
std::string keep(char index) { return {'q', index}; }
std::string recall(char index) { return {'h', index}; }

// Pickles that would take memory or time out of proportion.
TEST(Pickle, StaysInProportionToItsSize) {
  const std::string start = "\x80\x02";
  const std::string nested = start + "}" + pickled("a") + std::string(100'000, ']') + std::string(99'999, 'a') + "s.";
  // Ten times ten times ten ... values from a few lists of lists.
  std::string laughs = start + "}" + pickled("0") + "]" + keep(0) + "s";
  for (char i = 1; i < 12; ++i) {
    laughs += pickled(std::to_string(i)) + "](";
    for (int j = 0; j < 10; ++j) laughs += recall(static_cast<char>(i - 1));
    laughs += "e" + keep(i) + "s";
  }
  laughs += ".";
  const std::string loop = start + "}" + keep(0) + pickled("a") + recall(0) + "s.";
  // One long text, made bytes of again and again.
  std::string copies = start + "c_codecs\nencode\n" + keep(0) + pickled(std::string(65536, 'x')) + "\x85" + keep(1);
  for (int i = 0; i < 100'000; ++i) copies += recall(0) + recall(1) + "R";

  const TempDir folder;
  const auto read = [&](const std::string& program) {
    write_pt_archive(folder / "a.pt", {{"data.pkl", program}});
    read_pt(folder / "a.pt");
  };
  expect_error<DataError>([&] { read(nested); }, {"nested too deeply"});
  expect_error<DataError>([&] { read(laughs); }, {"its pickle unfolds to more"});
  expect_error<DataError>([&] { read(loop); }, {"nested too deeply"});
  expect_error<DataError>([&] { read(copies + "."); }, {"its pickle unfolds to more"});
}

// A new file each time: some file systems wait for the disk when one is written over.
std::string write_anew(const TempDir& folder, const std::string& bytes) {
  std::filesystem::remove(folder / "damaged.pt");
  return folder.write("damaged.pt", bytes);
}

class Damage {
 public:
  explicit Damage(uint64_t seed) : random_(seed) {}

  std::string operator()(std::string bytes) {
    const int times = 1 + below(3);
    for (int i = 0; i < times && !bytes.empty(); ++i) once(bytes);
    return bytes;
  }

 private:
  int below(size_t count) { return static_cast<int>(random_() % count); }

  void once(std::string& bytes) {
    const size_t at = static_cast<size_t>(below(bytes.size()));
    const size_t count = std::min<size_t>(bytes.size() - at, 1 + static_cast<size_t>(below(64)));
    switch (below(7)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); return;
      case 1: bytes[at] = static_cast<char>(random_()); return;
      case 2: std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), count, '\0'); return;
      case 3: bytes.erase(at, count); return;
      case 4: bytes.insert(at, bytes.substr(static_cast<size_t>(below(bytes.size())), count)); return;
      case 5: bytes.resize(at); return;
      default: bytes[at] = "\0\1\x7f\x80\xff(.R"[below(8)]; return;
    }
  }

  std::mt19937_64 random_;
};

std::vector<std::string> healthy_files(const TempDir& folder) {
  write_pt(folder / "ours.pt", writable_state());
  return {folder / "ours.pt", python_file("state_dict.pt"), python_file("mmengine.pth"), python_file("protocol4.pt"),
          python_file("zip64.pt")};
}

TEST(PtFile, DamagedFilesAreRefusedOrGiveTheRightTensors) {
  constexpr int kFiles = 2000;
  const TempDir folder;
  const std::vector<std::string> files = healthy_files(folder);
  Damage damage(1);
  int refused = 0;
  for (int i = 0; i < kFiles; ++i) {
    const std::string& file = files[static_cast<size_t>(i) % files.size()];
    const std::string damaged = write_anew(folder, damage(read_bytes(file)));
    try {
      const PtFile found = read_pt(damaged);
      expect_same_state(read_pt(file).state, found.state);
    } catch (const DataError&) {
      ++refused;
    }
    ASSERT_FALSE(HasFailure()) << "file " << i;
  }
  EXPECT_GT(refused, kFiles / 2);  // the others were hit where nothing is said: padding, times, names of no use
  std::cout << refused << " of " << kFiles << " refused, the others right\n";
}

// A file whose pickle can be exchanged, its CRC put right: damage then reaches the machine that reads it.
class PickleExchange {
 public:
  PickleExchange(const TempDir& folder, const std::string& file) {
    const zip_archive::Reader archive(file);
    std::vector<std::pair<std::string, std::string>> contents;
    for (const auto& entry : archive.entries()) {
      const std::string name = entry.name.substr(entry.name.find('/') + 1);
      std::string& bytes = contents.emplace_back(name, std::string(entry.bytes, '\0')).second;
      archive.read(entry, bytes.data());
    }
    healthy_ = contents[0].second;
    padded_ = healthy_ + std::string(256, '\0');  // room to grow; nobody reads beyond the pickle's end
    contents[0].second = padded_;
    write_pt_archive(folder / "exchange.pt", contents);
    bytes_ = read_bytes(folder / "exchange.pt");
  }

  const std::string& healthy() const { return healthy_; }
  std::string with(std::string pickle) const {
    pickle.resize(padded_.size());
    std::string bytes = bytes_;
    bytes.replace(bytes.find(padded_), pickle.size(), pickle);
    const std::string before = crc_of(padded_), after = crc_of(pickle);
    for (size_t at = bytes.find(before); at != std::string::npos; at = bytes.find(before, at + 4))
      bytes.replace(at, 4, after);
    return bytes;
  }

 private:
  static std::string crc_of(const std::string& text) {
    const auto crc = static_cast<uint32_t>(
        ::crc32(0, reinterpret_cast<const unsigned char*>(text.data()), static_cast<uInt>(text.size())));
    return {reinterpret_cast<const char*>(&crc), sizeof crc};
  }

  std::string healthy_, padded_, bytes_;
};

TEST(PtFile, DamagedPicklesAreRefusedOrRead) {
  constexpr int kPickles = 2000;
  const TempDir folder;
  Damage damage(2);
  std::vector<PickleExchange> exchanges;
  for (const std::string& file : healthy_files(folder)) exchanges.emplace_back(folder, file);
  int read = 0;
  for (int i = 0; i < kPickles; ++i) {
    const PickleExchange& exchange = exchanges[static_cast<size_t>(i) % exchanges.size()];
    const std::string path = write_anew(folder, exchange.with(damage(exchange.healthy())));
    try {
      const PtFile found = read_pt(path);
      for (const auto& [name, tensor] : found.state.tensors()) static_cast<void>(tensor.clone());  // touches its memory
      ++read;
    } catch (const DataError& error) {
      ASSERT_EQ(std::string(error.what()).find("CRC"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(read, kPickles / 100);
  std::cout << kPickles - read << " of " << kPickles << " refused\n";
}

}  // namespace
}  // namespace duet
