#include "distributed/communicator.h"
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "distributed/detail/rank_error.h"
#include "tests/support/ranks.h"

namespace duet {
namespace {

using testing::expect_error_on_all;
using testing::expect_no_error;
using testing::expect_rank_error;
using testing::Ranks;
using testing::run_ranks;

void check(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("wrong: " + what);
}

void on_ranks(int64_t count, const std::function<void(Communicator&)>& body) {
  expect_no_error(run_ranks(count, [&](const Ranks& ranks) {
    body(*ranks);
    return NamedTensors();
  }));
}

struct Report {
  char letter = 0;
  bool stops = false;
  int64_t samples = 0;
  double weight = 0;
};

struct LargeReport {
  uint64_t numbers[9] = {};
};

TEST(Communicator, GathersReports) {
  for (const int64_t count : {1, 3}) {
    on_ranks(count, [count](Communicator& ranks) {
      const auto own = ranks.rank();
      const auto all = ranks.gather(Report{static_cast<char>('a' + own), own == 1, (int64_t{1} << 60) + own, 0.1});
      const auto large = ranks.gather(LargeReport{{~uint64_t{0}, 0, 0, 0, 0, 0, 0, 0, static_cast<uint64_t>(own)}});
      check(static_cast<int64_t>(all.size()) == count && all.size() == large.size(), "one of each rank");
      for (int64_t rank = 0; rank < count; ++rank) {
        const Report& said = all[static_cast<std::size_t>(rank)];
        check(said.letter == 'a' + rank && said.stops == (rank == 1) && said.weight == 0.1, "small ones");
        check(said.samples == (int64_t{1} << 60) + rank, "each bit of a large number");
        const LargeReport& more = large[static_cast<std::size_t>(rank)];
        check(more.numbers[0] == ~uint64_t{0} && more.numbers[8] == static_cast<uint64_t>(rank), "large ones");
      }
    });
  }
}

TEST(OneProcess, IsAWorldOfOne) {
  Communicator& alone = *one_process();
  EXPECT_TRUE(alone.is_single());
  EXPECT_TRUE(alone.is_main());
  EXPECT_EQ(alone.world_size(), 1);
  EXPECT_EQ(alone.gather(2.5), std::vector<double>{2.5});
  EXPECT_EQ(alone.all_gather(std::string("a")), std::vector<std::string>{"a"});
  EXPECT_EQ(alone.broadcast("a"), "a");
  alone.barrier();
  alone.fail("of no consequence to a next run");
  run_on_main(alone, [] {});
  EXPECT_THROW(run_on_all_ranks(alone, [] { throw DataError("a"); }), DataError);
}

TEST(Communicator, GathersAndBroadcastsTexts) {
  on_ranks(3, [](Communicator& ranks) {
    const std::string large(1 << 20, static_cast<char>('a' + ranks.rank()));
    const std::vector<std::string> own = {"", large, ranks.rank() == 1 ? std::string("a\0b", 3) : ""};
    for (const std::string& text : own) {
      const auto all = ranks.all_gather(text);
      check(all.size() == 3 && all[static_cast<std::size_t>(ranks.rank())] == text, "the own text");
    }
    check(ranks.all_gather(large)[2] == std::string(1 << 20, 'c'), "a large text");
    check(ranks.all_gather(own[2]) == std::vector<std::string>({"", std::string("a\0b", 3), ""}),
          "an empty and a short one");
    check(ranks.broadcast(large) == std::string(1 << 20, 'a'), "rank 0's");
    check(ranks.broadcast(large, 2) == std::string(1 << 20, 'c'), "rank 2's");
    check(ranks.broadcast(ranks.rank() == 1 ? "" : "x", 1).empty(), "an empty one");
  });
}

TEST(Communicator, SumsEveryDtype) {
  on_ranks(3, [](Communicator& ranks) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte}) {
      const at::Tensor values = at::arange(5, at::kFloat).add(ranks.rank()).to(type);
      ranks.start_sum(values);
      ranks.finish(values);
      check(at::equal(values, at::arange(5, at::kFloat).mul(3).add(3).to(type)),
            std::string("the sum of ") + c10::toString(type));
      const at::Tensor copied = at::full({4, 2}, ranks.rank() + 1, type);
      ranks.start_broadcast(copied, 2);
      ranks.finish(copied);
      check(at::equal(copied, at::full({4, 2}, 3, type)), std::string("a broadcast of ") + c10::toString(type));
    }
    const at::Tensor nothing = at::zeros({0});
    ranks.start_sum(nothing);
    ranks.finish(nothing);
  });
}

TEST(Communicator, HasSeveralOnTheirWay) {
  on_ranks(4, [](Communicator& ranks) {
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < 20; ++i) all.push_back(at::full({1 + i * 1000}, static_cast<double>(i), at::kDouble));
    const int64_t before = ranks.bytes_started();
    for (std::size_t i = 0; i < all.size(); ++i)
      i % 3 == 0 ? ranks.start_broadcast(all[i], 1) : ranks.start_sum(all[i]);
    check(ranks.gather(7).size() == 4, "the host's numbers in between");
    int64_t bytes = 0;
    for (std::size_t i = all.size(); i-- > 0;) {
      ranks.finish(all[i]);
      check(at::equal(all[i], at::full_like(all[i], static_cast<double>(i) * (i % 3 == 0 ? 1 : 4))), "each of many");
      bytes += static_cast<int64_t>(all[i].nbytes());
    }
    check(ranks.bytes_started() - before == bytes, "the count of bytes");
  });
}

TEST(Communicator, KeepsAnStepAndRepeatsItAlone) {
  on_ranks(2, [](Communicator& ranks) {
    const auto step = [&](double value) {
      const at::Tensor a = at::full({3}, value), b = at::full({2}, value + 10);
      ranks.start_sum(a);
      ranks.start_broadcast(b, 1);
      ranks.finish(a);
      ranks.finish(b);
      return std::vector<double>{a[0].item<double>(), b[0].item<double>()};
    };
    const auto own = static_cast<double>(ranks.rank() + 1);
    ranks.record_collectives();
    check(step(own) == std::vector<double>({3, 12}), "the kept step");
    if (ranks.rank() == 0) {  // the other does nothing
      ranks.replay_collectives();
      check(step(own) == std::vector<double>({3, 12}) && ranks.repeated_exactly(), "the same again");
      ranks.replay_collectives();
      check(step(own + 1) == std::vector<double>({3, 12}) && !ranks.repeated_exactly(), "another contribution");
    }
    ranks.resume_collectives();
    check(step(2 * own) == std::vector<double>({6, 14}), "a usual step");
  });
}

TEST(Communicator, RefusesAnotherCallOnAnotherRank) {
  const auto results = run_ranks(2, [](const Ranks& ranks) {
    if (ranks->rank() == 0) ranks->barrier();
    if (ranks->rank() == 1) ranks->all_gather(std::string(100, 'x'));
    return NamedTensors();
  });
  expect_error_on_all(
      results, 2, "rank 1 is at another call than rank 0: 'all_gather of a text' instead of 'all_gather of 8 bytes'");
}

// In the middle of a step too, with work on its way and with one that the others never join.
TEST(Communicator, NamesTheRankThatFailsAtOnce) {
  for (const bool is_working : {false, true}) {
    const auto results = run_ranks(3, [&](const Ranks& ranks) {
      ranks->report(17, "data");
      const at::Tensor a = at::ones({1000}), b = at::ones({1000});
      if (is_working) ranks->start_sum(a);
      if (is_working && ranks->rank() == 1) ranks->start_sum(b);
      if (ranks->rank() == 1) throw DataError("the file is torn");
      if (is_working) ranks->finish(a);
      ranks->barrier();
      return NamedTensors();
    });
    expect_rank_error(results[1], 3, "the file is torn");
    for (const std::size_t rank : {0, 2})
      expect_rank_error(results[rank], 6, "rank 1 failed in step 17 (data): the file is torn");
  }
}

TEST(Communicator, IsAtItsEndAfterAnError) {
  on_ranks(2, [](Communicator& ranks) {
    if (ranks.rank() == 1) return ranks.fail("enough");
    for (int i = 0; i < 3; ++i) EXPECT_THROW(ranks.barrier(), PeerError);
    const at::Tensor values = at::ones({3});
    EXPECT_THROW(ranks.start_sum(values), PeerError);
    if (::testing::Test::HasFailure()) throw std::runtime_error("a call did not throw");
  });
}

// A rank that comes back from a body without having made the calls of the others.
TEST(Communicator, NamesTheRankThatLeaves) {
  const auto results = run_ranks(3, [](const Ranks& ranks) {
    ranks->report(3, "step");
    if (ranks->rank() != 2) ranks->barrier();
    return NamedTensors();
  });
  EXPECT_EQ(results[2].error, "");
  for (const std::size_t rank : {0, 1})
    expect_rank_error(results[rank], 6, "rank 2 has left the group in step 3 (step)");
}

// Here its own, elsewhere one that names the rank; RankError.KeepsItsType has the types.
TEST(Together, ThrowsOnAllRanks) {
  const auto results = run_ranks(3, [](const Ranks& ranks) {
    run_on_all_ranks(*ranks, [] {});
    run_on_all_ranks(*ranks, [&] {
      if (ranks->rank() == 2) throw DataError("torn");
    });
    return NamedTensors();
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank].exit_code, 3);
    EXPECT_EQ(results[rank].error, rank == 2 ? "torn" : "on rank 2: torn");
  }
}

// One rank fails before it comes to the inner call: the others learn of it there, and all go on together.
TEST(Together, TellsOfAnErrorOnceWhereOneCallIsWithinAnother) {
  const auto results = run_ranks(3, [](const Ranks& ranks) {
    const auto refuse_if = [](bool refuses) {
      if (refuses) throw SaveRefused("no room");
    };
    std::vector<double> refusals;
    for (const bool is_outside : {true, false}) {
      try {
        run_on_all_ranks(*ranks, [&] {
          refuse_if(is_outside && ranks->rank() == 1);
          run_on_all_ranks(*ranks, [&] { refuse_if(!is_outside && ranks->rank() == 2); });
        });
      } catch (const SaveRefused&) {
        refusals.push_back(1);
      }
      ranks->barrier();
    }
    return NamedTensors{{"refusals", at::tensor(refusals)}};
  });
  expect_no_error(results);
  for (const auto& result : results) EXPECT_EQ(result.at("refusals").numel(), 2);
}

template <class... Errors>
void expect_kept(const Errors&... errors) {
  const auto expect = [](const auto& error) {
    try {
      throw_packed(packed_error_of(2, packed_error(std::make_exception_ptr(error))));
    } catch (const std::exception& found) {
      EXPECT_EQ(typeid(found), typeid(error)) << typeid(error).name();
      EXPECT_EQ(std::string(found.what()), "on rank 2: no more");
    }
  };
  (expect(errors), ...);
}

TEST(RankError, KeepsItsType) {
  expect_kept(ConfigError("no more"), DataError("no more"), CheckpointError("no more"), SaveRefused("no more"),
              PeerError("no more"), GraphError("no more"), NonFiniteError("no more"), Error("no more", 1));
  EXPECT_EQ(packed_error(nullptr), "");
}

TEST(Together, RunsOnRank0Alone) {
  const auto results = run_ranks(3, [](const Ranks& ranks) {
    double calls = 0;
    run_on_main(*ranks, [&] { ++calls; });
    check(calls == (ranks->rank() == 0 ? 1 : 0), "one call");
    run_on_main(*ranks, [&] { throw CheckpointError("no room"); });
    return NamedTensors();
  });
  expect_error_on_all(results, 4, "no room");
  int calls = 0;
  run_on_main(*one_process(), [&] { ++calls; });
  run_on_all_ranks(*one_process(), [&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace duet
