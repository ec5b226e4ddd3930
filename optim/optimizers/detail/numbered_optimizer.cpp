#include "optim/optimizers/detail/numbered_optimizer.h"
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/log.h"

namespace duet {

void NumberedOptimizer::check_number(std::size_t group, const std::string& name, double value) const {
  numbers_.tensor(group, name);  // throws for a name that is not there
  options_.check_number(name, value);
}

void NumberedOptimizer::set(std::size_t group, const std::string& name, double value) {
  check_number(group, name, value);
  numbers_.set(group, name, value);
}

void NumberedOptimizer::set_schedule(const std::string& name, Curve curve) {
  const int64_t now = applied();
  for (std::size_t group = 0; group < group_count(); ++group) {
    if (has(group, name)) check_number(group, name, curve(group, now));
  }
  numbers_.set_schedule(name, [this, name, curve = std::move(curve)](std::size_t group, int64_t at) {
    const double value = curve(group, at);
    check_number(group, name, value);
    return value;
  });
}

std::string NumberedOptimizer::number_key(const char* what, std::size_t group, const std::string& name) {
  return concat_text(what, ".", group, ".", name);
}

void NumberedOptimizer::save_numbers(StateDict& state) const {
  for_each_number([&](std::size_t group, const std::string& name, double configured) {
    state.set(number_key("param_groups", group, name), get(group, name));
    state.set(number_key("configured", group, name), configured);
    state.set(number_key("kept", group, name), numbers_.kept(group, name));
  });
}

void NumberedOptimizer::load_numbers(const StateDict& state) {
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (auto& [name, value] : configured_[group]) {
      const double saved = state.number(number_key("configured", group, name));
      if (saved != value) {
        const std::string where = group_count() == 1 ? "" : c10::str(" of group ", group);
        log_warning(c10::str("[Optimizer] the state was trained with ", name, where, " = ", saved,
                             ", this run is configured with ", value,
                             "; that of the state is used. BaseTrainer::load can take this run's"));
      }
      value = saved;  // as if it had been made with it: what is saved next says what is used
      set(group, name, state.number(number_key("param_groups", group, name)));
    }
  }
  numbers_.end();  // these are the numbers as they were; only some were set against a curve
  for_each_number([&](std::size_t group, const std::string& name, double) {
    const std::string key = number_key("kept", group, name);
    if (state.has(key) && state.flag(key)) numbers_.keep(group, name);
  });
  numbers_.refill();
}

}  // namespace duet
