#include "graph/explain/code_place.h"
#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <string_view>
#include <vector>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <torch/csrc/profiler/unwind/unwind.h>
#include "core/detail/user_place.h"

namespace duet {

namespace {

template <std::size_t size>
bool begins_with_any(std::string_view text, const std::array<std::string_view, size>& starts) {
  return std::ranges::any_of(starts, [text](std::string_view start) { return text.starts_with(start); });
}

// Whose functions are nobody's own code.
constexpr std::array<std::string_view, 17> kForeignLibraries = {
    "libtorch", "libc10",  "libstdc++", "libc.so", "libc-",  "libm.",  "libgcc", "libgomp", "libpthread",
    "ld-linux", "libasan", "libubsan",  "libtsan", "libmkl", "libc++", "libcud", "libnccl"};

// Instances of templates of these lie in the user's own program, and a sanitizer's functions.
constexpr std::array<std::string_view, 13> kForeignFunctions = {"at::",
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

bool lies_in_users_library(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  return !begins_with_any(std::filesystem::path(info.dli_fname).filename().string(), kForeignLibraries);
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

// "net.cpp:31"; empty if unknown, or if the compiler put a function of a header into the user's own there.
std::string line_of(const Frame& frame, void* call) {
  const auto library = torch::unwind::libraryFor(call);  // which LibTorch gives where it knows no source
  const std::string& path = frame.filename;
  if (frame.lineno == 0 || path == "??" || !library || path == library->first) return {};
  for (const char* folder : {"/include/ATen/", "/include/c10/", "/include/torch/", "/include/c++/"}) {
    if (path.find(folder) != std::string::npos) return {};
  }
  return std::filesystem::path(path).filename().string() + ":" + std::to_string(frame.lineno);
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
  c10::ReplaceAll(name, "(anonymous namespace)::", "");
  c10::ReplaceAll(name, "operator()", "operator{}");
  c10::ReplaceAll(name, "#", "}#");  // "{lambda(int)#1}": the number goes
  name = lambda_among_arguments(name);
  name = without(without(name, '(', ')'), '<', '>');
  c10::ReplaceAll(name, "::operator{}", "");
  c10::ReplaceAll(name, "operator{}", "operator()");
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
    if (function.empty() || function == "??" || begins_with_any(function, kForeignFunctions)) continue;
    const std::string line = line_of(frames[i], calls[i]);
    return line.empty() ? function : line + " in " + function;
  }
  return {};
}

}  // namespace duet
