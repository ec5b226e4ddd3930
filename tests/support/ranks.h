#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "base/batch.h"
#include "distributed/detail/connect.h"

namespace duet::testing {

// What one rank of run_ranks() gave.
struct RankResult {
  NamedTensors tensors;
  std::string error;    // of what the body threw; empty: nothing
  int exit_code = 0;    // of that error; -signal if the process was killed
  double seconds = 0;   // from the start of all to its end
  double stopped = -1;  // from the start of all to its first stop by SIGSTOP; negative: it was not stopped

  const at::Tensor& at(const std::string& name) const;
};

using Ranks = std::shared_ptr<Communicator>;
using RankBody = std::function<NamedTensors(const Ranks&)>;

// Runs `body` in `count` processes that are connected to each other. The calling
// process starts no thread, so that tests may fork again and again: it must not compute with tensors itself before. A
// rank that stops itself by SIGSTOP goes on when all others have ended.
std::vector<RankResult> run_ranks(int64_t count, const RankBody& body,
                                  const ConnectOptions& options = {.start_timeout = 200, .timeout = 60});

// Much less than those seconds, and much more than any machine needs: the ranks of run_ranks() waited for no timeout.
constexpr double kAtOnce = 100;

// The same for processes that connect by themselves, or fail to.
std::vector<RankResult> run_processes(int64_t count, const std::function<NamedTensors(const Launch&)>& body);

// A port of this machine that is free now.
int free_port();

// No rank has an error.
void expect_no_error(const std::vector<RankResult>& results);
// This rank has an error of that exit code, whose text holds `text`, and waited for no timeout.
void expect_rank_error(const RankResult& result, int exit_code, const std::string& text);
// All ranks have one.
void expect_error_on_all(const std::vector<RankResult>& results, int exit_code, const std::string& text);
// All ranks gave tensors of the same bits.
void expect_same_on_all(const std::vector<RankResult>& results);
// Of two numbers of the same place, over all tensors but the one called `but`.
double largest_difference(const RankResult& a, const RankResult& b, const std::string& but = "");

}  // namespace duet::testing
