#include <chrono>
#include <string>
#include <thread>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "distributed/detail/same_on_all_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/sample_state.h"

namespace duet {
namespace {

using testing::expect_no_error;
using testing::run_ranks;

StateDict contiguous(const StateDict& state) {
  StateDict plain;
  for (const auto& [name, tensor] : state.tensors()) plain.set(name, tensor.contiguous());
  for (const auto& [name, value] : state.values()) plain.set(name, value);
  return plain;
}

TEST(BroadcastState, GivesAllRanksThatOfTheFirst) {
  const auto results = run_ranks(3, [](const std::shared_ptr<Communicator>& ranks) {
    StateDict own;
    if (ranks->is_main()) {
      own = contiguous(odd_state());
      own.set("model.large", at::arange(int64_t{5} << 20, at::kLong));  // of several pieces
    }
    const StateDict found = broadcast_state(*ranks, own);
    if (found.tensors().size() < 10) throw std::runtime_error("tensors are missing");
    NamedTensors all;
    for (const auto& [name, tensor] : found.tensors()) all.emplace_back(name, tensor);
    for (const auto& [name, value] : found.values()) {
      if (const auto* number = std::get_if<double>(&value))
        all.emplace_back(name, at::scalar_tensor(*number, at::kDouble));
      if (const auto* text = std::get_if<std::string>(&value)) {
        all.emplace_back(name, at::full({1}, static_cast<int64_t>(text->size())));
      }
    }
    return all;
  });
  expect_no_error(results);
  testing::expect_same_on_all(results);
}

void sleep_on(const Communicator& ranks, int64_t rank, int seconds) {
  if (ranks.rank() == rank) std::this_thread::sleep_for(std::chrono::seconds(seconds));
}

const ConnectOptions kLimit{.start_timeout = 4, .timeout = 4};
constexpr int kLonger = 10;

TEST(MainAtWork, IsWaitedForHoweverLongItTakes) {
  const auto results = run_ranks(
      3,
      [](const std::shared_ptr<Communicator>& ranks) {
        run_on_main(*ranks, [&] { sleep_on(*ranks, 0, kLonger); });
        ranks->barrier();
        return NamedTensors();
      },
      kLimit);
  expect_no_error(results);
}

TEST(MainAtWork, AnotherRankThatDoesNotComeIsStillMissed) {
  const auto results = run_ranks(
      2,
      [](const std::shared_ptr<Communicator>& ranks) {
        sleep_on(*ranks, 1, kLonger);
        run_on_main(*ranks, [] {});
        return NamedTensors();
      },
      kLimit);
  testing::expect_rank_error(results[0], 6, "");
  EXPECT_LT(results[0].seconds, kLonger);
}

}  // namespace
}  // namespace duet
