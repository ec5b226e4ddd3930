#include "distributed/detail/rank_error.h"
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

struct ErrorType {
  char letter;
  bool (*is)(const Error& error);
  void (*raise)(const std::string& text);
};

template <class E>
constexpr ErrorType error_type(char letter) {
  return {letter, [](const Error& error) { return dynamic_cast<const E*>(&error) != nullptr; },
          [](const std::string& text) { throw E(text); }};
}

// All of base/error.h, a derived type before its base. What is none of them has the letter 'e'.
constexpr ErrorType kErrorTypes[] = {error_type<SaveRefused>('r'),   error_type<ConfigError>('c'),
                                     error_type<DataError>('d'),     error_type<CheckpointError>('k'),
                                     error_type<PeerError>('p'),     error_type<GraphError>('g'),
                                     error_type<NonFiniteError>('n')};

}  // namespace

std::string packed_error(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    for (const ErrorType& type : kErrorTypes) {
      if (type.is(found)) return type.letter + std::string(found.what());
    }
    return std::string("e") + found.what();
  } catch (...) {
    return "e" + text_of(error);
  }
}

std::string packed_error_of(int64_t rank, const std::string& packed) {
  return c10::str(packed.front(), "on rank ", rank, ": ", packed.substr(1));
}

void throw_packed(const std::string& packed) {
  const std::string text = packed.substr(1);
  for (const ErrorType& type : kErrorTypes) {
    if (type.letter == packed.front()) type.raise(text);
  }
  throw Error(text, 1);
}

}  // namespace duet
