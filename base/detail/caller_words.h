#pragma once

#include <string>
#include <utility>
#include <vector>

namespace duet {

// Messages speak of C++'s entry points and their arguments. Who came by another one reads its words instead.
using CallerWords = std::vector<std::pair<std::string, std::string>>;  // ours and theirs, longer ones first

// From now on, in all threads.
void set_caller_words(CallerWords words);

// In this thread and beside those, while it lives.
class CallerWordsScope {
 public:
  explicit CallerWordsScope(const CallerWords& words);
  ~CallerWordsScope();
  CallerWordsScope(const CallerWordsScope&) = delete;
  CallerWordsScope& operator=(const CallerWordsScope&) = delete;

 private:
  const CallerWords* outer_;
};

std::string in_callers_words(std::string text);

}  // namespace duet
