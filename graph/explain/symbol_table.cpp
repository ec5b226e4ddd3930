#include "graph/explain/symbol_table.h"
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace duet {

namespace {

using Header = ElfW(Ehdr);
using Section = ElfW(Shdr);
using Symbol = ElfW(Sym);

// A whole file, mapped: only the pages that are looked at are read.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status{};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      count_ = static_cast<std::size_t>(status.st_size);
      bytes_ = mmap(nullptr, count_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
  }
  ~MappedFile() {
    if (is_open()) munmap(bytes_, count_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  bool is_open() const { return bytes_ != MAP_FAILED; }
  const char* bytes() const { return static_cast<const char*>(bytes_); }
  std::size_t count() const { return count_; }

 private:
  void* bytes_ = MAP_FAILED;
  std::size_t count_ = 0;
};

// The `index`-th item of a table in the file; a zero one where the file ends before it.
template <class Item>
Item item_at(const char* bytes, std::size_t count, uint64_t offset, std::size_t index) {
  Item item{};
  const uint64_t begin = offset + index * sizeof(Item);
  if (begin + sizeof(Item) <= count) std::memcpy(&item, bytes + begin, sizeof(Item));
  return item;
}

std::string text_at(const char* bytes, std::size_t count, uint64_t offset) {
  if (offset >= count) return {};
  return {bytes + offset, strnlen(bytes + offset, count - offset)};
}

}  // namespace

SymbolTable::SymbolTable(const std::string& path) {
  const MappedFile file(path);
  if (file.is_open() && file.count() > sizeof(Header) && std::memcmp(file.bytes(), ELFMAG, SELFMAG) == 0) {
    read(file.bytes(), file.count());
  }
}

void SymbolTable::read(const char* bytes, std::size_t count) {
  const auto header = item_at<Header>(bytes, count, 0, 0);
  relocated_ = header.e_type == ET_DYN;
  const auto section = [&](std::size_t index) { return item_at<Section>(bytes, count, header.e_shoff, index); };
  const Section names = section(header.e_shstrndx);
  for (std::size_t s = 0; s < header.e_shnum; ++s) {
    const Section table = section(s);
    if (text_at(bytes, count, names.sh_offset + table.sh_name) == ".debug_line") has_lines_ = true;
    if (table.sh_type != SHT_SYMTAB) continue;
    const Section texts = section(table.sh_link);
    for (std::size_t i = 0; i < table.sh_size / sizeof(Symbol); ++i) {
      const auto symbol = item_at<Symbol>(bytes, count, table.sh_offset, i);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0) continue;
      functions_[symbol.st_value] = {symbol.st_size, text_at(bytes, count, texts.sh_offset + symbol.st_name)};
    }
  }
}

std::string SymbolTable::function_at(uint64_t address) const {
  auto next = functions_.upper_bound(address);
  if (next == functions_.begin()) return {};
  const auto& [begin, function] = *--next;
  return address < begin + function.size ? function.name : std::string();
}

}  // namespace duet
