#pragma once

#include <memory>
#include <string>
#include <vector>
#include "../base/options.h"
#include "task.h"

namespace duet {

struct ScriptTaskOptions {
  std::string path{};                 // file written by torch.jit.save; loading it runs code from that file
  std::vector<std::string> inputs{};  // batch tensors passed to forward(), in order; empty: all but `target`
  std::string target = "target";
  // "cross_entropy" (logits [N, C, ...] or [N, T, C] against int64 classes), "mse", or "none": forward() takes the
  // target as its last argument and returns the loss itself.
  std::string loss = "cross_entropy";
  static const OptionFields& fields();
};

// A scripted or traced TorchScript module as a task, in either mode. Throws ConfigError that names the file if it is
// missing, is no TorchScript archive, or has no forward method.
std::unique_ptr<Task> make_script_task(const ScriptTaskOptions& options);

}  // namespace duet
