#include "cli/config/normalize_config.h"
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "base/log.h"
#include "cli/config/split_config.h"
#include "data/transform.h"

namespace duet {

namespace {

using Numbers = std::vector<double>;
using MeanAndStd = std::pair<Numbers, Numbers>;

// One number stands for all channels.
Numbers shortened(const Numbers& numbers) {
  const bool alike = std::all_of(numbers.begin(), numbers.end(), [&](double one) { return one == numbers.front(); });
  return alike && !numbers.empty() ? Numbers{numbers.front()} : numbers;
}

void find_normalize(const ConfigNode& node, std::set<MeanAndStd>& found) {
  for (const ConfigNode& item : node.list("transforms")) {
    if (item.need<std::string>("type") != "Normalize") continue;
    const auto options = read_all_options<NormalizeOptions>(item);
    found.emplace(shortened(options.mean), shortened(options.std));
  }
  for (const ConfigNode& inner : inner_datasets(node)) find_normalize(inner, found);
}

std::set<MeanAndStd> normalize_in(const ConfigNode& node) {
  std::set<MeanAndStd> found;
  find_normalize(node, found);
  return found;
}

const char* words_for(const std::set<MeanAndStd>& normalize) {
  return normalize.empty() ? "no Normalize" : "Normalize";
}

}  // namespace

void compare_normalize(const DataConfig& train, const DataConfig& evaluated) {
  const std::set<MeanAndStd> known = normalize_in(train.node), given = normalize_in(evaluated.node);
  const bool are_known = std::includes(known.begin(), known.end(), given.begin(), given.end());
  if (are_known && given.empty() == known.empty()) return;
  const bool is_other = !given.empty() && !known.empty();
  log_warning(evaluated.node.path() + " has " + words_for(given) + (is_other ? " of another mean or std than " : ", ") +
              train.node.path() + (is_other ? "" : std::string(" has ") + words_for(known)) +
              ": the model sees other values than those that it is trained with. Write the same in both");
}

}  // namespace duet
