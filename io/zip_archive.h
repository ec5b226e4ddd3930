#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "io/file_io.h"

// Reads ZIP archives of entries that are stored as they are, which is how PyTorch packs its files. Of any size: by
// ZIP64. LibTorch's own reader looks at neither sizes nor checksums.
namespace duet::zip_archive {

struct Entry {
  std::string name;
  uint64_t header = 0;  // offset of the header in front of its bytes
  uint64_t bytes = 0;   // as stored
  uint64_t unpacked = 0;
  uint32_t crc = 0;
  uint16_t flags = 0, method = 0;
};

// Reads a file's directory at once and its entries when asked. Throws MalformedFile for what is wrong with it, IoError
// for what the system refuses. No entry is larger than the file, nor are all of them together.
class Reader {
 public:
  explicit Reader(const std::string& path);

  uint64_t size() const { return file_.size(); }  // of the file
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* find(const std::string& name) const;
  // Reads the entry.bytes bytes of an entry and verifies its CRC.
  void read(const Entry& entry, void* data) const;
  // All of an entry; empty if there is none. Throws if it has more bytes than that.
  std::string text_of(const std::string& name, uint64_t max_bytes) const;
  // Reads an entry, packed ones unpacked, and verifies size and CRC, without keeping it.
  void verify(const Entry& entry) const;

 private:
  struct Directory {
    uint64_t offset = 0, bytes = 0, count = 0;
  };
  Directory find_directory() const;
  Directory read_zip64(uint64_t end_record) const;
  void read_entries(const Directory& directory);
  uint64_t begin_of(const Entry& entry) const;

  file_io::FileReader file_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t> by_name_;
};

// Verifies all entries of an archive that something else is going to load: their sum unpacked stays within
// file_memory(), and no CRC is wrong. Throws as Reader does.
void verify_archive(const std::string& path);

// The storages of an archive's tensors: 1-d, whole, each read when it is first asked for.
class Storages {
 public:
  // `folder`: what the names of their entries begin with.
  Storages(const Reader& archive, std::string folder) : archive_(archive), folder_(std::move(folder)) {}
  const at::Tensor& get(const std::string& name, at::ScalarType type);
  const std::map<std::string, at::Tensor>& read() const { return read_; }  // so far, by their entries' names

 private:
  const Reader& archive_;
  std::string folder_;
  std::map<std::string, at::Tensor> read_;
};

}  // namespace duet::zip_archive
