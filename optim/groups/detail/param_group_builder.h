#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>
#include "optim/groups/param_group.h"

namespace duet {

// Collects trainable parameters into groups. Parameters with equal numbers share one, so that a step makes few
// kernel calls; a parameter that the model knows under several names enters once, with the numbers of the first.
class ParamGroupBuilder {
 public:
  // `may_differ`: a tied parameter whose names call for different numbers is no reason to warn.
  ParamGroupBuilder(const OptimizerOptions& options, bool may_differ);

  // The optimizer's own numbers.
  const std::map<std::string, double>& base() const { return base_; }

  // `rule` says in a word why the parameter has these numbers. Throws ConfigError for numbers that the optimizer does
  // not have, or outside their range.
  void add(const std::pair<std::string, at::Tensor>& parameter, std::map<std::string, double> numbers,
           const std::string& rule);

  ParamGroups finish();

 private:
  struct Entry {
    std::string name;
    std::map<std::string, double> numbers;
  };

  void check(const std::string& parameter, const std::map<std::string, double>& numbers) const;
  void warn_if_other(const Entry& first, const Entry& again) const;

  OptimizerOptions optimizer_;
  std::map<std::string, double> base_;
  bool may_differ_;
  ParamGroups groups_;
  std::vector<std::vector<std::string>> rules_;  // of each group
  std::unordered_map<const void*, Entry> seen_;
};

// The numbers that a run of this optimizer starts with: the options' where they are given, else the optimizer's
// defaults.
std::map<std::string, double> base_numbers(const OptimizerOptions& options);

}  // namespace duet
