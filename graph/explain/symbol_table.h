#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace duet {

// The functions of an ELF file by their addresses: of its full symbol table, which programs keep unless they are
// stripped. (dladdr() knows exported functions alone, and a program exports none.)
class SymbolTable {
 public:
  // Of no file that can be read: empty.
  explicit SymbolTable(const std::string& path);

  // The mangled name of the function at this address of the file; empty if there is none.
  std::string function_at(uint64_t address) const;
  // Whether addresses of the running program count from where the file was loaded.
  bool is_relocated() const { return relocated_; }
  bool has_lines() const { return has_lines_; }

 private:
  struct Function {
    uint64_t size;
    std::string name;
  };
  void read(const char* bytes, std::size_t count);

  std::map<uint64_t, Function> functions_;  // by address
  bool relocated_ = true;
  bool has_lines_ = false;
};

}  // namespace duet
