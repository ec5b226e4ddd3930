#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <gtest/gtest.h>
#include "base/log.h"
#include "tests/graph/fuzz/parity.h"

// Random programs must train to the same bits in both modes. DUET_FUZZ_PROGRAMS and DUET_FUZZ_SEED: how many, and the
// seed of the first; DUET_FUZZ_VERBOSE prints each before it runs, to find one that crashes.

namespace duet::testing::fuzz {
namespace {

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

// The same reason at another place counts as the same.
std::string without_place(const std::string& reason) {
  const std::size_t end = std::min({reason.find(", after the last read"), reason.find(", before the first parameter"),
                                    reason.find(", first in '"), reason.size()});
  return reason.substr(0, end);
}

// What many programs gave.
class Summary {
 public:
  void add(const Program& program, const Parity& parity) {
    ++programs_;
    ++verdicts_[parity.verdict];
    ops_ += program.nodes.size();
    if (parity.verdict == Verdict::kInvalid) {
      ++invalid_[parity.what.substr(0, 90)];
      return;
    }
    for (const Node& node : program.nodes) kinds_.insert(op_kinds()[node.kind].name);
    for (const SignatureReport& report : parity.report) {
      ++states_[report.state];
      replays_ += report.replays;
      const bool changes = program.changes_host_code();
      if (!report.reason.empty()) ++reasons_[(changes ? "host code changes: " : "") + without_place(report.reason)];
    }
  }

  std::size_t kinds() const { return kinds_.size(); }
  // Of the signatures, those that were captured and stayed so.
  double captured() const {
    int64_t all = 0;
    for (const auto& item : states_) all += item.second;
    const auto captured = states_.find("captured");
    return captured == states_.end() ? 0 : static_cast<double>(captured->second) / static_cast<double>(all);
  }
  int64_t count(Verdict verdict) const {
    const auto found = verdicts_.find(verdict);
    return found == verdicts_.end() ? 0 : found->second;
  }

  void print(std::ostream& out) const {
    out << programs_ << " programs of " << ops_ << " ops, " << kinds_.size() << " of " << op_kinds().size()
        << " kinds; " << replays_ << " replays\n";
    for (const auto& [verdict, count] : verdicts_) out << "  " << count << " " << name_of(verdict) << "\n";
    for (const auto& [state, count] : states_) out << "signatures " << state << ": " << count << "\n";
    print_counts(out, "why steps ran eager:", reasons_);
    print_counts(out, "why eager failed:", invalid_);
  }

 private:
  static void print_counts(std::ostream& out, const char* title, const std::map<std::string, int64_t>& counts) {
    std::multimap<int64_t, std::string, std::greater<>> ordered;
    for (const auto& [reason, count] : counts) ordered.emplace(count, reason);
    out << title << "\n";
    for (const auto& [count, reason] : ordered) out << "  " << count << "  " << reason << "\n";
  }

  int64_t programs_ = 0, replays_ = 0;
  std::size_t ops_ = 0;
  std::map<Verdict, int64_t> verdicts_;
  std::map<std::string, int64_t> states_, reasons_, invalid_;
  std::set<std::string> kinds_;
};

void report_failure(const Program& program, const Parity& parity) {
  const Program small = shrunk(program, parity.verdict);
  ADD_FAILURE() << name_of(parity.verdict) << ": " << parity.what << "\n"
                << text_of(program) << "shrunk, which gives: " << compare_modes(small).what << "\n"
                << text_of(small);
}

// Threads that wait for each other would take most of the time, and LibTorch warns of half of the ops.
class Quiet {
 public:
  Quiet() : before_(at::get_num_threads()) {
    at::set_num_threads(1);
    set_log_level(LogLevel::kError);
    c10::WarningUtils::set_warning_handler(&silence_);
  }
  ~Quiet() {
    at::set_num_threads(before_);
    set_log_level(LogLevel::kInfo);
    c10::WarningUtils::set_warning_handler(nullptr);
  }

 private:
  struct Silence : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  int before_;
  Silence silence_;
};

Parity tried(const Program& program, Summary& summary) {
  static const bool verbose = std::getenv("DUET_FUZZ_VERBOSE") != nullptr;
  if (verbose) std::cout << text_of(program) << std::flush;
  Parity parity = compare_modes(program);
  if (verbose) {
    std::cout << "  -> " << name_of(parity.verdict) << " " << parity.what << "\n";
    for (const SignatureReport& report : parity.report)
      std::cout << "  -> " << report.state << " " << report.reason << "\n";
  }
  summary.add(program, parity);
  if (is_failure(parity.verdict)) report_failure(program, parity);
  return parity;
}

TEST(ParityFuzz, EveryKindOfOpGivesTheSameBitsInBothModes) {
  const Quiet quiet;
  const auto seed = static_cast<uint64_t>(number_from("DUET_FUZZ_SEED", 1));
  Summary summary;
  for (std::size_t kind = 0; kind < op_kinds().size(); ++kind) {
    const Parity parity = tried(program_of(kind, seed), summary);
    EXPECT_NE(parity.verdict, Verdict::kInvalid) << op_kinds()[kind].name << ": " << parity.what;
  }
  summary.print(std::cout);
  EXPECT_EQ(summary.kinds(), op_kinds().size());
  EXPECT_GE(summary.captured(), 0.95);
}

TEST(ParityFuzz, RandomProgramsGiveTheSameBitsInBothModes) {
  const int64_t programs = number_from("DUET_FUZZ_PROGRAMS", 320);
  const auto first = static_cast<uint64_t>(number_from("DUET_FUZZ_SEED", 1));
  const Quiet quiet;
  Summary summary;
  for (int64_t n = 0; n < programs; ++n) tried(random_program(first + static_cast<uint64_t>(n)), summary);
  summary.print(std::cout);
  EXPECT_LE(summary.count(Verdict::kInvalid), programs / 20) << "programs that eager mode does not run test nothing";
  if (programs < 300) return;
  EXPECT_GE(summary.kinds(), 600U);
  EXPECT_GE(summary.captured(), 0.6);
}

}  // namespace
}  // namespace duet::testing::fuzz
