#include "core/detail/distributed_step.h"
#include <atomic>
#include <bit>
#include <iterator>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/detail/train_step.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

namespace {

std::string line(const std::string& name, const OptionValue& value) { return name + ": " + text_of(value) + "\n"; }

template <Described Options>
std::string lines_of(const Options& options) {
  return Options::fields().lines(&options);
}

// Without the numbers of HyperParameters, which are compared group by group.
std::string lines_of(const OptimizerOptions& options, const HyperParameters& numbers) {
  std::string lines = line("optimizer", options.type());
  for (const OptionField& field : options.fields()) {
    if (!numbers.has(0, field.name) && field.name != "betas") lines += line(field.name, field.get(options.data()));
  }
  return lines;
}

std::string lines_of_step(const TrainerOptions& o) {
  std::string lines = line("amp", o.amp ? c10::toString(*o.amp) : "off");
  lines += line("accumulate", o.loop.accumulate);
  lines += line("limit_train_batches", o.loop.limit_train_batches);
  lines += line("limit_val_batches", o.loop.limit_val_batches);
  lines += line("limit_test_batches", o.loop.limit_test_batches);
  lines += line("clip_grad", o.clip_grad ? "on" : "off");
  lines += line("log_grad_norm", o.log_grad_norm);
  lines += line("loss_scale", o.loss_scale ? o.loss_scale->dynamic ? "dynamic" : "static" : "off");
  lines += line("non_finite", static_cast<int64_t>(o.non_finite));
  if (o.clip_grad) lines += std::visit([](const auto& clip) { return lines_of(clip); }, *o.clip_grad);
  if (o.loss_scale) lines += lines_of(*o.loss_scale);
  lines += line("schedules", static_cast<int64_t>(o.schedules.size()));
  for (const Schedule& schedule : o.schedules) {
    lines += line("schedule", type_of(schedule));
    lines += std::visit([](const auto& options) { return lines_of(options); }, schedule);
  }
  return lines + lines_of(o.distributed);
}

std::string lines_of(const ParamGroups& groups) {
  std::map<std::string, std::size_t> group_of;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const auto& parameter : groups[group].parameters) group_of[parameter.first] = group;
  }
  std::string lines;
  for (const auto& [name, group] : group_of) lines += line("group of " + name, static_cast<int64_t>(group));
  return lines;
}

std::string lines_of(const HyperParameters& numbers) {
  std::string lines;
  for (std::size_t group = 0; group < numbers.group_count(); ++group) {
    for (const std::string& name : numbers.names()) {
      if (numbers.has(group, name)) lines += line(c10::str(name, " of group ", group), numbers.get(group, name));
    }
  }
  return lines;
}

uint64_t hash_of(uint64_t hash, const std::string& text) {
  for (const char letter : text) hash = hash_with(hash, static_cast<unsigned char>(letter));
  return hash;
}

// Rank 0 counts for all: others may be in more groups than it is.
int64_t next_trainer(Communicator& ranks) {
  static std::atomic<int64_t> made{0};
  return ranks.gather(made++).front();
}

}  // namespace

SameSettings::SameSettings(std::shared_ptr<Communicator> ranks, const TrainerOptions& options,
                           const ParamGroups& groups, const HyperParameters& numbers)
    : ranks_(std::move(ranks)), trainer_(next_trainer(*ranks_)) {
  agree(lines_of(options.optimizer, numbers) + lines_of_step(options) + lines_of(groups), numbers);
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
  std::string lines;
  for (std::size_t group = 0; group < numbers.group_count(); ++group) {
    if (!numbers.has(group, name)) continue;
    for (int64_t applied = 0; applied <= kLast; applied = applied == 0 ? 1 : 2 * applied)
      lines += line(c10::str(name, " of group ", group, " after ", applied, " steps"), curve(group, applied));
  }
  std::string& known = curves_[name];
  if (known == lines) return;
  known = std::move(lines);
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
  std::string own = c10::str("trainer number: ", trainer_, "\n", options, lines_of(numbers));
  for (const auto& [name, values] : curves_) own += c10::str(name, " follows a curve: yes\n", values);
  check_same_on_all_ranks<ConfigError>(*ranks_, own, [](const RankDifference& found) {
    return c10::str("[Distributed] rank ", found.rank, " trains with other settings than rank 0 (", found.there,
                    "; on rank 0 ", found.on_first,
                    "), expected the same everywhere; give all ranks the same options, ",
                    "let hooks set numbers on all of them, and step trainers in the same order");
  });
  hash_ = hash_with(0, static_cast<uint64_t>(trainer_));
}

DistributedStep::DistributedStep(Task& task, const NamedTensors& parameters, const ParamGroups& groups,
                                 at::Device device, const TrainerOptions& options, const HyperParameters& numbers)
    : task_(task),
      broadcasts_buffers_(options.distributed.broadcast_buffers),
      communicator_(options.distributed.communicator),
      settings_(communicator_, options, groups, numbers),
      gradients_(parameters, communicator_, options.distributed),
      values_(communicator_, device),
      buffers_(communicator_) {}

uint64_t DistributedStep::fingerprint() const {
  const uint64_t model = hash_with(gradients_.layout(), broadcasts_buffers_ ? buffers_.layout() : 0);
  return hash_with(model, settings_.hash());
}

void DistributedStep::recheck() {
  settings_.recheck();
  gradients_.recheck();
  if (broadcasts_buffers_) buffers_.recheck();
}

void DistributedStep::before_last_backward(const StepResult& share) {
  NamedTensors values = {{"loss", share.loss}};
  values.insert(values.end(), share.log.begin(), share.log.end());
  values_.start(values);
  gradients_.arm();
}

void DistributedStep::after_backward(StepResult& output, bool has_batch) {
  if (!has_batch) values_.start({});
  gradients_.finish();
  NamedTensors sums = values_.finish();
  output.loss = sums.front().second;
  output.log.assign(std::make_move_iterator(sums.begin() + 1), std::make_move_iterator(sums.end()));
}

void DistributedStep::after_step() {
  if (broadcasts_buffers_) buffers_.run(task_.named_buffers());
}

}  // namespace duet
