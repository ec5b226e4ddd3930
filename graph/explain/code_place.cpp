#include "graph/explain/code_place.h"
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <vector>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/auxv.h>
#include <torch/csrc/profiler/unwind/unwind.h>
#include "core/detail/user_place.h"
#include "graph/explain/symbol_table.h"

namespace duet {

namespace {

bool begins_with_any(std::string_view text, const std::vector<const char*>& starts) {
  return std::any_of(starts.begin(), starts.end(), [text](const char* start) { return text.rfind(start, 0) == 0; });
}

// Libraries whose functions are nobody's own code.
bool is_foreign_library(const std::string& path) {
  static const std::vector<const char*> names = {"libtorch", "libc10",  "libstdc++",  "libc.so",  "libc-",   "libm.",
                                                 "libgcc",   "libgomp", "libpthread", "ld-linux", "libasan", "libubsan",
                                                 "libtsan",  "libmkl",  "libc++",     "libcud",   "libnccl"};
  return begins_with_any(std::filesystem::path(path).filename().string(), names);
}

// Instances of templates of these lie in the user's own program.
bool is_foreign_function(const std::string& name) {
  static const std::vector<const char*> names = {
      "at::",         "c10::",         "torch::",           "std::",          "__gnu_cxx::",
      "duet::OpTap",  "duet::OpRec",   "duet::ProgramWr",   "duet::Obstacle", "duet::place_in_user_code",
      "duet::detail", "duet::ModuleT", "duet::HookObserver"};
  return begins_with_any(name, names);
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

const SymbolTable& symbols_of(const std::string& path) {
  static auto* const tables = new std::map<std::string, SymbolTable>();
  return tables->try_emplace(path, path).first->second;
}

struct Frame {
  void* address = nullptr;
  std::string function;  // demangled
  bool has_lines = false;
};

// False if the address lies in no library of the user's.
bool find_frame(void* address, Frame& frame) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr || is_foreign_library(info.dli_fname)) return false;
  // The program's own path may be relative to a folder that it has left.
  static const void* const program = [] {
    Dl_info own{};
    dladdr(reinterpret_cast<const void*>(getauxval(AT_PHDR)), &own);  // the program's own headers
    return own.dli_fbase;
  }();
  const SymbolTable& symbols = symbols_of(info.dli_fbase == program ? "/proc/self/exe" : info.dli_fname);
  const auto absolute = reinterpret_cast<uint64_t>(address);
  const uint64_t base = symbols.is_relocated() ? reinterpret_cast<uint64_t>(info.dli_fbase) : 0;
  std::string name = symbols.function_at(absolute - base);
  if (name.empty() && info.dli_sname != nullptr) name = info.dli_sname;
  frame = {address, demangled(name), symbols.has_lines()};
  return !name.empty();
}

// Functions of LibTorch's headers that the compiler put into the user's own: the line would be theirs.
bool is_foreign_source(const std::string& path) {
  const auto lies_in = [&path](const char* folder) { return path.find(folder) != std::string::npos; };
  return lies_in("/include/ATen/") || lies_in("/include/c10/") || lies_in("/include/torch/") ||
         lies_in("/include/c++/");
}

// "net.cpp:31", or "near net.cpp:31": of the code just before, where the call itself is a header's. Empty if unknown.
std::string line_of(const Frame& frame) {
  constexpr int kBytesBefore = 96;
  std::vector<void*> addresses;
  Frame before;
  for (int i = 0; i < kBytesBefore; ++i) {
    void* const address = static_cast<char*>(frame.address) - i;
    if (!find_frame(address, before) || before.function != frame.function) break;
    addresses.push_back(address);
  }
  try {
    const auto found = torch::unwind::symbolize(addresses, torch::unwind::Mode::fast);
    for (std::size_t i = 0; i < found.size() && found[i].lineno != 0 && found[i].filename != "??"; ++i) {
      if (is_foreign_source(found[i].filename)) continue;
      const std::string file = std::filesystem::path(found[i].filename).filename().string();
      return (i > 0 ? "near " : "") + file + ":" + std::to_string(found[i].lineno);
    }
  } catch (const std::exception&) {  // debug information that LibTorch cannot read, or another processor
  }
  return {};
}

// The text without what stands in balanced brackets.
std::string without(const std::string& text, char open, char close) {
  std::string result;
  int depth = 0;
  for (const char letter : text) {
    if (letter == open) ++depth;
    if (depth == 0) result += letter;
    if (letter == close && depth > 0) --depth;
  }
  return result;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// A wrapper that a lambda was inlined into carries it among its template arguments: the text of that argument.
std::string lambda_among_arguments(const std::string& name) {
  const std::size_t lambda = name.find("::{lambda");
  const std::size_t open = name.find('<');
  if (lambda == std::string::npos || open == std::string::npos || open > lambda) return name;
  int depth = 0;
  std::size_t begin = lambda;
  for (; begin > 0; --begin) {
    const char letter = name[begin - 1];
    if (letter == ')' || letter == '>') ++depth;
    if (letter == '(' || letter == '<') --depth;
    if (depth < 0 || (depth == 0 && letter == ' ')) break;
  }
  const std::size_t end = name.find('}', lambda);
  return name.substr(begin, end == std::string::npos ? end : end + 1 - begin);
}

}  // namespace

std::string short_function_name(const std::string& demangled) {
  std::string name = demangled;
  replace_all(name, "(anonymous namespace)::", "");
  replace_all(name, "operator()", "operator{}");
  replace_all(name, "#", "}#");  // "{lambda(int)#1}": the number goes
  name = lambda_among_arguments(name);
  name = without(without(name, '(', ')'), '<', '>');
  replace_all(name, "::operator{}", "");
  replace_all(name, "operator{}", "operator()");
  for (const char* suffix : {" const", " [clone"}) {
    if (const std::size_t at = name.find(suffix); at != std::string::npos) name.erase(at);
  }
  const std::size_t end = name.find("}#");  // "{lambda}#1}"
  if (end != std::string::npos) name.erase(end + 1);
  return name.substr(name.rfind(' ') + 1);  // of a template the type of the result comes first
}

std::string place_in_user_code() {
  if (const auto place = user_place()) return *place;
  std::array<void*, 256> addresses{};
  const int count = backtrace(addresses.data(), static_cast<int>(addresses.size()));
  for (int i = 0; i < count; ++i) {
    void* const call = static_cast<char*>(addresses[i]) - 1;  // a frame holds where it goes on
    Frame frame;
    if (!find_frame(call, frame)) continue;
    const std::string function = short_function_name(frame.function);
    if (function.rfind("duet::TrainStep::", 0) == 0) return {};
    if (function.empty() || is_foreign_function(function)) continue;
    const std::string line = frame.has_lines ? line_of(frame) : std::string();
    return line.empty() ? function : line + " in " + function;
  }
  return {};
}

}  // namespace duet
