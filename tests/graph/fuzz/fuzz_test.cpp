#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include "base/log.h"
#include "tests/graph/fuzz/parity.h"
#include "tests/support/number_from.h"

// Random programs must train to the same bits in both modes. DUET_FUZZ_PROGRAMS and DUET_FUZZ_SEED: how many, and the
// seed of the first; DUET_FUZZ_VERBOSE prints each before it runs, to find one that crashes.

namespace duet::testing::fuzz {
namespace {

// What many programs gave.
class Summary {
 public:
  void add(const Program& program, const Parity& parity) {
    ++programs_;
    ++verdicts_[parity.verdict];
    if (parity.verdict == Verdict::kInvalid) return;
    for (const Node& node : program.nodes) kinds_.insert(op_kinds()[node.kind].name);
    for (const SignatureReport& report : parity.report) {
      ++signatures_;
      captured_ += report.state == "captured" ? 1 : 0;
      replays_ += report.replays;
    }
  }

  std::size_t kinds() const { return kinds_.size(); }
  // Of the signatures, those that were captured and stayed so.
  double captured() const { return static_cast<double>(captured_) / static_cast<double>(signatures_); }
  int64_t count(Verdict verdict) const {
    const auto found = verdicts_.find(verdict);
    return found == verdicts_.end() ? 0 : found->second;
  }

  void print(std::ostream& out) const {
    out << programs_ << " programs, " << kinds_.size() << " of " << op_kinds().size() << " kinds, " << captured_
        << " of " << signatures_ << " signatures captured, " << replays_ << " replays\n";
    for (const auto& [verdict, count] : verdicts_) out << "  " << count << " " << name_of(verdict) << "\n";
  }

 private:
  int64_t programs_ = 0, signatures_ = 0, captured_ = 0, replays_ = 0;
  std::map<Verdict, int64_t> verdicts_;
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

// Kinds that always do the same and cannot be captured, and why.
constexpr const char* kReadBack = "aten::_local_scalar_dense reads a value back to the host";
const std::map<std::string, std::string> kRunEager = {
    {"boolean_index", "aten::index.Tensor has an output whose shape depends on values"},
    {"masked_select", "aten::masked_select has an output whose shape depends on values"},
    {"cross_entropy_weighted", "aten::masked_select has an output whose shape depends on values"},
    {"nonzero", "aten::nonzero has an output whose shape depends on values"},
    {"unique", "aten::_unique has an output whose shape depends on values"},
    {"bincount", "aten::bincount has an output whose shape depends on values"},
    {"repeat_interleave_by_tensor", "aten::repeat_interleave.Tensor has an output whose shape depends on values"},
    {"from_blob_cloned", "a tensor over memory that it does not own (from_blob) is read"},
    {"sgn", "an op gives a tensor of zeros without memory"},
    {"transformer_decoder_layer", "aten::equal reads a value back to the host"},
    {"dstack", kReadBack},
    {"prod", kReadBack},
    {"cumprod", kReadBack},
    {"batch_norm2d_cumulative", kReadBack},
    {"counted_up_then_item", kReadBack},
    {"item_of_the_values", kReadBack}};

// Empty: it is captured.
std::string reason_to_run_eager(const std::string& kind) {
  constexpr bool kNewest = TORCH_VERSION_MINOR >= 14;
  constexpr const char* kByAddress = "reads the memory of a tensor of the step by its address";
  if (kind == "combinations") return kNewest ? "" : kRunEager.at("masked_select");
  if (kind == "quantile" || kind == "nanquantile") return kNewest ? kByAddress : "";
  const auto found = kRunEager.find(kind);
  return found == kRunEager.end() ? "" : found->second;
}

void expect_captured_or_the_reason(const OpKind& kind, const Parity& parity) {
  const std::string eager = reason_to_run_eager(kind.name);
  std::string reasons;
  bool captured = false;
  for (const SignatureReport& report : parity.report) {
    reasons += report.reason;
    captured = captured || report.state == "captured";
  }
  EXPECT_EQ(captured, eager.empty()) << kind.name << ": " << reasons;
  if (captured) {
    EXPECT_EQ(reasons, "") << kind.name;
  } else {
    EXPECT_NE(reasons.find(eager), std::string::npos) << kind.name << ": " << reasons;
  }
}

TEST(ParityFuzz, EveryKindOfOpGivesTheSameBitsInBothModes) {
  const Quiet quiet;
  const auto seed = static_cast<uint64_t>(number_from("DUET_FUZZ_SEED", 1));
  Summary summary;
  for (std::size_t n = 0; n < op_kinds().size(); ++n) {
    const OpKind& kind = op_kinds()[n];
    Program program = program_of(n, seed);
    const Parity parity = tried(program, summary);
    EXPECT_NE(parity.verdict, Verdict::kInvalid) << kind.name << ": " << parity.what;
    if (kind.host == OpKind::Host::kChanges) continue;
    expect_captured_or_the_reason(kind, parity);
    program.settings.guarded = false;
    tried(program, summary);
  }
  summary.print(std::cout);
  EXPECT_EQ(summary.kinds(), op_kinds().size());
}

TEST(ParityFuzz, RandomProgramsGiveTheSameBitsInBothModes) {
  const int64_t programs = number_from("DUET_FUZZ_PROGRAMS", 100);
  const auto first = static_cast<uint64_t>(number_from("DUET_FUZZ_SEED", 1));
  const Quiet quiet;
  Summary summary;
  for (int64_t n = 0; n < programs; ++n) tried(random_program(first + static_cast<uint64_t>(n)), summary);
  summary.print(std::cout);
  EXPECT_LE(summary.count(Verdict::kInvalid), programs / 20) << "programs that eager mode does not run test nothing";
  if (programs < 300) return;
  EXPECT_GE(summary.kinds(), 530U);
  EXPECT_GE(summary.captured(), 0.6);
}

}  // namespace
}  // namespace duet::testing::fuzz
