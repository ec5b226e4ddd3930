#include "base/detail/caller_words.h"

namespace duet {

namespace {

CallerWords& everywhere() {
  static auto* const words = new CallerWords();
  return *words;
}

thread_local const CallerWords* in_scope = nullptr;

void replace(std::string& text, const CallerWords& words) {
  for (const auto& [ours, theirs] : words) {
    for (std::size_t at = text.find(ours); at != std::string::npos; at = text.find(ours, at + theirs.size())) {
      text.replace(at, ours.size(), theirs);
    }
  }
}

}  // namespace

void set_caller_words(CallerWords words) { everywhere() = std::move(words); }

CallerWordsScope::CallerWordsScope(const CallerWords& words) : outer_(std::exchange(in_scope, &words)) {}

CallerWordsScope::~CallerWordsScope() { in_scope = outer_; }

std::string in_callers_words(std::string text) {
  if (in_scope != nullptr) replace(text, *in_scope);
  replace(text, everywhere());
  return text;
}

}  // namespace duet
