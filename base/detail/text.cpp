#include "base/detail/text.h"
#include <algorithm>
#include <cctype>
#include <ctime>
#include <numeric>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace duet {

namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Fewest insertions, deletions, changes and swaps of neighbours, the usual slips, that turn a into b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr std::size_t kLongest = 256;  // nobody mistypes more, and two long names of a file would take hours
  if (std::max(a.size(), b.size()) > kLongest) return std::max(a.size(), b.size());
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);  // rows i-2, i-1 and i of the table
  std::iota(last.begin(), last.end(), std::size_t{0});
  const auto same = [&](std::size_t i, std::size_t j) { return lower(a[i]) == lower(b[j]); };
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(i - 1, j - 1) ? 0 : 1)});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1)) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last.back();
}

// A beginning ("Acc" of "Accuracy") or an end ("mIoU" of "val/mIoU").
bool is_part(std::string_view word, std::string_view candidate) {
  if (word.size() < 3 || candidate.size() <= word.size()) return false;
  return edit_distance(word, candidate.substr(0, word.size())) == 0 ||
         edit_distance(word, candidate.substr(candidate.size() - word.size())) == 0;
}

// In halves. A part is nearer than three slips, as of any short word, but not than two.
std::size_t distance(std::string_view word, std::string_view candidate) {
  const std::size_t slips = 2 * edit_distance(word, candidate);
  return is_part(word, candidate) ? std::min<std::size_t>(slips, 5) : slips;
}

bool is_near(std::string_view word, std::string_view candidate) {
  return is_part(word, candidate) ||
         edit_distance(word, candidate) <= std::max<std::size_t>(1, std::max(word.size(), candidate.size()) / 3);
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const auto best = std::min_element(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    return distance(word, a) < distance(word, b);
  });
  return best == candidates.end() || !is_near(word, *best) ? std::string() : *best;
}

std::string misspelling_of(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string candidate = nearest(word, candidates);
  const std::size_t slips = word.size() < 2   ? 0
                            : word.size() < 4 ? 1
                                              : 2;  // more would leave too little of a short word
  return !candidate.empty() && edit_distance(word, candidate) <= slips ? candidate : std::string();
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + one_line(word);
  return text.empty() ? "nothing" : text;
}

std::string join_first(std::vector<std::string> words, std::size_t most) {
  const std::size_t more = words.size() > most ? words.size() - most : 0;
  words.resize(words.size() - more);
  return join(words) + (more > 0 ? c10::str(" and ", more, " more") : "");
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string guess = nearest(word, candidates);
  return guess.empty() ? "" : c10::str("; did you mean '", one_line(guess), "'?");
}

std::string known_and_nearest(std::string_view word, const std::vector<std::string>& candidates) {
  return c10::str("known: ", join(candidates), did_you_mean(word, candidates));
}

namespace {

std::string without_backtrace(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace

std::string first_line(const std::exception& error) {
  const std::string text = without_backtrace(error);
  return text.substr(0, text.find('\n'));
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return without_backtrace(known);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace duet
