#include "graph/explain/code_place.h"
#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <string_view>
#include <vector>
#include <dlfcn.h>
#include <execinfo.h>
#include <torch/csrc/profiler/unwind/unwind.h>
#include "core/detail/user_place.h"

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

// Instances of templates of these lie in the user's own program, and a sanitizer's functions.
bool is_foreign_function(const std::string& name) {
  static const std::vector<const char*> names = {"at::",
                                                 "c10::",
                                                 "torch::",
                                                 "std::",
                                                 "__gnu_cxx::",
                                                 "___interceptor_",
                                                 "duet::Op",
                                                 "duet::ProgramWr",
                                                 "duet::Explainer",
                                                 "duet::place_in_user_code",
                                                 "duet::detail",
                                                 "duet::ModuleT",
                                                 "duet::HookObserver"};
  return begins_with_any(name, names);
}

bool lies_in_users_library(void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr && !is_foreign_library(info.dli_fname);
}

using torch::unwind::Frame;

// The functions of the libraries' symbol tables, which programs keep unless they are stripped (dladdr() knows exported
// ones alone, and a program exports none), and their lines. Empty on another processor than LibTorch can do it for.
std::vector<Frame> symbolized(const std::vector<void*>& addresses) {
  try {
    return torch::unwind::symbolize(addresses, torch::unwind::Mode::fast);
  } catch (const std::exception&) {  // debug information that LibTorch cannot read
    return {};
  }
}

// Otherwise LibTorch gives the library in the place of a source.
bool has_line(const Frame& frame, void* address) {
  const auto library = torch::unwind::libraryFor(address);
  return frame.lineno != 0 && frame.filename != "??" && library && frame.filename != library->first;
}

// Functions of LibTorch's headers that the compiler put into the user's own: the line would be theirs.
bool is_foreign_source(const std::string& path) {
  const auto lies_in = [&path](const char* folder) { return path.find(folder) != std::string::npos; };
  return lies_in("/include/ATen/") || lies_in("/include/c10/") || lies_in("/include/torch/") ||
         lies_in("/include/c++/");
}

// "net.cpp:31", or "near net.cpp:31": of the code just before, where the call itself is a header's. Empty if unknown.
std::string line_of(void* call, const std::string& function) {
  constexpr int kBytesBefore = 96;
  std::vector<void*> addresses;
  for (int i = 0; i < kBytesBefore; ++i) addresses.push_back(static_cast<char*>(call) - i);
  const std::vector<Frame> found = symbolized(addresses);
  for (std::size_t i = 0; i < found.size() && found[i].funcname == function && has_line(found[i], addresses[i]); ++i) {
    if (is_foreign_source(found[i].filename)) continue;
    const std::string file = std::filesystem::path(found[i].filename).filename().string();
    return (i > 0 ? "near " : "") + file + ":" + std::to_string(found[i].lineno);
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
  std::vector<void*> calls;
  for (int i = 0; i < count; ++i) {
    void* const call = static_cast<char*>(addresses[i]) - 1;  // a frame holds where it goes on
    if (lies_in_users_library(call)) calls.push_back(call);
  }
  const std::vector<Frame> frames = symbolized(calls);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const std::string function = short_function_name(frames[i].funcname);
    if (function.rfind("duet::TrainStep::", 0) == 0) return {};
    if (function.empty() || function == "??" || is_foreign_function(function)) continue;
    const std::string line = line_of(calls[i], frames[i].funcname);
    return line.empty() ? function : line + " in " + function;
  }
  return {};
}

}  // namespace duet
