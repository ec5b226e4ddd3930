#include "core/detail/same_settings.h"
#include <atomic>
#include <bit>
#include <charconv>
#include <string_view>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/train_step.h"
#include "distributed/detail/layout_hash.h"
#include "distributed/detail/same_on_all_ranks.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

// A line for each value, numbers with all their digits.
class Lines {
 public:
  void add(const std::string& name, double value) {
    char digits[32];
    add(name, std::string_view(digits, std::to_chars(digits, digits + sizeof digits, value).ptr));
  }
  void add(const std::string& name, std::string_view value) { text_ += c10::str(name, ": ", value, "\n"); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <Described Options>
std::string lines_of(const Options& options) {
  return Options::fields().lines(&options);
}

// Without the numbers of HyperParameters, which are compared group by group.
std::string lines_of(const OptimizerOptions& options, const HyperParameters& numbers) {
  Lines lines;
  lines.add("optimizer", std::string_view(options.type()));
  for (const OptionField& field : options.fields()) {
    if (!numbers.has(0, field.name) && field.name != "betas") lines.add(field.name, text_of(field.get(options.data())));
  }
  return lines.text();
}

std::string lines_of_step(const TrainStepOptions& o) {
  Lines lines;
  lines.add("amp", o.amp ? c10::toString(*o.amp) : "off");
  lines.add("clip_grad", o.clip_grad ? "on" : "off");
  lines.add("loss_scale", o.loss_scale ? o.loss_scale->dynamic ? "dynamic" : "static" : "off");
  lines.add("non_finite", static_cast<double>(o.non_finite));
  std::string text = lines.text();
  if (o.clip_grad) text += std::visit([](const auto& clip) { return lines_of(clip); }, *o.clip_grad);
  if (o.loss_scale) text += lines_of(*o.loss_scale);
  return text + lines_of(o.distributed);
}

std::string text_of(const ParamGroups& groups) {
  std::map<std::string, std::size_t> group_of;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const auto& parameter : groups[group].parameters) group_of[parameter.first] = group;
  }
  Lines lines;
  for (const auto& [name, group] : group_of) lines.add("group of " + name, static_cast<double>(group));
  return lines.text();
}

std::string text_of(const HyperParameters& numbers) {
  Lines lines;
  for (std::size_t group = 0; group < numbers.group_count(); ++group) {
    for (const std::string& name : numbers.names()) {
      if (numbers.has(group, name)) lines.add(c10::str(name, " of group ", group), numbers.get(group, name));
    }
  }
  return lines.text();
}

uint64_t hash_of(uint64_t hash, const std::string& text) {
  for (const char letter : text) hash = hash_with(hash, static_cast<unsigned char>(letter));
  return hash;
}

void check_same(Communicator& ranks, const std::string& settings) {
  check_same_on_all_ranks<ConfigError>(ranks, settings, [](const RankDifference& found) {
    return c10::str("[Distributed] rank ", found.rank, " trains with other settings than rank 0 (", found.there,
                    "; on rank 0 ", found.on_first,
                    "), expected the same everywhere; give all ranks the same options, ",
                    "let hooks set numbers on all of them, and step trainers in the same order");
  });
}

// Rank 0 counts for all: others may be in more groups than it is.
int64_t next_trainer(Communicator& ranks) {
  static std::atomic<int64_t> made{0};
  return static_cast<int64_t>(ranks.all_gather(std::vector<double>{static_cast<double>(made++)}).front().front());
}

}  // namespace

void check_same_schedules(Communicator& ranks, const std::vector<Schedule>& schedules) {
  std::string text;
  for (const Schedule& schedule : schedules) {
    text += c10::str("schedule: ", type_of(schedule), "\n");
    text += std::visit([](const auto& options) { return lines_of(options); }, schedule);
  }
  check_same(ranks, text);
}

SameSettings::SameSettings(std::shared_ptr<Communicator> ranks, const TrainStepOptions& options,
                           const ParamGroups& groups, const HyperParameters& numbers)
    : ranks_(std::move(ranks)), trainer_(next_trainer(*ranks_)) {
  agree(lines_of(options.optimizer, numbers) + lines_of_step(options) + text_of(groups), numbers);
}

void SameSettings::note(std::size_t group, const std::string& name, double value) {
  const bool follows = curves_.count(name) != 0;
  const auto [known, first] = set_.try_emplace({group, name}, value);
  if (!first && !follows && std::exchange(known->second, value) == value) return;  // sets what is there already
  hash_ = hash_with(hash_of(hash_, name), hash_with(group, std::bit_cast<uint64_t>(value)));
}

// A curve is known by its values at 0, 1, 2, 4, 8, ... applied steps.
void SameSettings::note(const std::string& name, const HyperParameters::Curve& curve, const HyperParameters& numbers) {
  constexpr int64_t kLast = int64_t{1} << 24;
  Lines lines;
  for (std::size_t group = 0; group < numbers.group_count(); ++group) {
    if (!numbers.has(group, name)) continue;
    for (int64_t applied = 0; applied <= kLast; applied = applied == 0 ? 1 : 2 * applied)
      lines.add(c10::str(name, " of group ", group, " after ", applied, " steps"), curve(group, applied));
  }
  std::string& known = curves_[name];
  if (known == lines.text()) return;
  known = lines.text();
  std::erase_if(set_, [&](const auto& item) { return item.first.second == name; });
  hash_ = hash_of(hash_of(hash_, name), known);
}

void SameSettings::forget(const std::string& name) {
  if (curves_.erase(name) > 0) hash_ = hash_of(hash_, name);
}

void SameSettings::prepare(const HyperParameters& numbers) {
  if (!rechecks_) return;
  rechecks_ = false;
  agree("", numbers);
}

void SameSettings::agree(const std::string& options, const HyperParameters& numbers) {
  std::string own = c10::str("trainer number: ", trainer_, "\n", options, text_of(numbers));
  for (const auto& [name, values] : curves_) own += c10::str(name, " follows a curve: yes\n", values);
  check_same(*ranks_, own);
  hash_ = hash_with(0, static_cast<uint64_t>(trainer_));
}

}  // namespace duet
