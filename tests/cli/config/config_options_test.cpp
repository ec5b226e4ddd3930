#include "cli/config/config_options.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

// One description is read, checked, shown and compared.

namespace duet {
namespace {

enum class Speed { kEager, kGraph };

struct Inner {
  double rate = 0.5;
};

struct SampleOptions {
  int64_t n = 5;
  int64_t few = 5;
  double lr = 0.1;
  double falls = -0.5;
  Speed mode = Speed::kEager;
  int64_t cache = 1024;
  bool on = true;
  std::array<double, 2> betas = {0.9, 0.99};
  std::string word{};
  std::optional<double> limit{};
  std::vector<int64_t> sizes = {1};
  int64_t x = 0;
  Inner inner{};

  static const OptionFields& fields() {
    using O = SampleOptions;
    return described<O>("Sample", [](const auto& add) {
      add("n", &O::n, "steps").in(at_least(1)).also_keyed("count");
      add("few", &O::few, "some").in(between(1, 9));
      add("rate", [](O& o) -> double& { return o.inner.rate; }, "share").in(between(0, 1));
      add("lr", &O::lr, "learning rate").in(above(0));
      add("falls", &O::falls, "exponent").in(Range{.high = 0});
      add("mode", &O::mode, "how", {"eager", "graph"});
      add("cache", &O::cache, "memory").called("bytes");
      add("on", &O::on, "whether");
      add("betas", &O::betas, "two shares").in(up_to_below(0, 1));
      add("word", &O::word, "a name").or_within("part");
      add("limit", &O::limit, "nothing: none").in(at_least(1).or_infinity());
      add("sizes", &O::sizes, "widths").one_or_list();
      add("x", &O::x, "must be given").needed();
      add.key("amount", "integer or fraction", "read by hand", "auto");
      add.rule([](const O& o) {
        if (o.n == o.few + 1) throw ConfigError("[Sample] found n above few, expected less");
      });
    });
  }
};

SampleOptions read_sample(const std::string& text) {
  return read_all_options<SampleOptions>(ConfigNode::parse_text(text, "c.yaml"));
}

TEST(ConfigOptions, HelpHoldsTypesDefaultsRangesAndChoices) {
  std::string text;
  for (const ConfigKey& key : keys_of<SampleOptions>("s")) {
    text += key.path + "|" + key.type + "|" + key.fallback + "|" + key.range + "|" + key.meaning +
            (key.required ? "|required\n" : "\n");
  }
  EXPECT_EQ(text, R"(s.n|integer|5|at least 1|steps; also called count
s.few|integer|5|1 to 9|some
s.rate|number|0.5|0 to 1|share
s.lr|number|0.1|above 0|learning rate
s.falls|number|-0.5|at most 0|exponent
s.mode|eager, graph|eager||how
s.cache|bytes|1024||memory
s.on|true/false|true||whether
s.betas|list of numbers|[0.9, 0.99]|in [0, 1)|two shares
s.word|text|||a name
s.limit|number||at least 1|nothing: none
s.sizes|list of integers|[1]||widths
s.x|integer|||must be given|required
s.amount|integer or fraction|auto||read by hand
)");
}

TEST(ConfigOptions, ReadsWhatIsThereAndLeavesTheRest) {
  const SampleOptions o = read_sample(
      "{count: 7, mode: graph, cache: 2 KiB, betas: [0, 0.5], part: {word: w}, limit: .inf, sizes: 3, x: 1}");
  EXPECT_EQ(o.n, 7);
  EXPECT_EQ(o.few, 5);
  EXPECT_EQ(o.mode, Speed::kGraph);
  EXPECT_EQ(o.cache, 2048);
  EXPECT_EQ(o.betas, (std::array<double, 2>{0, 0.5}));
  EXPECT_EQ(o.word, "w");
  EXPECT_EQ(o.limit, std::numeric_limits<double>::infinity());
  EXPECT_EQ(o.sizes, std::vector<int64_t>{3});
  EXPECT_EQ(o.inner.rate, 0.5);
  EXPECT_EQ(read_sample("{x: 1, rate: 0.25, word: v}").inner.rate, 0.25);
}

TEST(ConfigOptions, NamesPlaceAndRangeOfNonsense) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "x is missing"},
      {"{x: 1, n: 0}", "n is 0, expected an integer from 1 to 2147483647"},
      {"{x: 1, few: 10}", "few is 10, expected an integer from 1 to 9"},
      {"{x: 1, n: 1, count: 2}", "count is set beside n, which is the same"},
      {"{x: 1, lr: 0}", "lr is 0, expected a number > 0"},
      {"{x: 1, lr: .inf}", "lr is .inf, expected a number > 0"},
      {"{x: 1, rate: 2}", "rate is 2, expected a number in [0, 1]"},
      {"{x: 1, mode: grap}", "mode is 'grap', expected eager, graph; did you mean 'graph'"},
      {"{x: 1, betas: [0.5]}", "betas has 1 numbers, expected 2"},
      {"{x: 1, betas: [0.5, 1]}", "betas.1 is 1, expected a number in [0, 1)"},
      {"{x: 1, n: 6}", ": [Sample] found n above few"},
      {"{x: 1, y: 1}", "unknown key 'y'"},
      {"{x: 1, sizes: [1, b]}", "sizes.1 is 'b', expected an integer"}};
  for (const auto& [text, message] : cases)
    expect_error<ConfigError>([&] { read_sample(text); }, {"[Config] c.yaml:1: ", message});
}

TEST(ConfigOptions, AnyOptionsAreSetByNameAndToldApart) {
  AnyOptions first{SampleOptions()};
  AnyOptions second = first;
  second.set("mode", std::string("graph"));
  EXPECT_EQ(first.get_if<SampleOptions>()->mode, Speed::kEager);
  EXPECT_NE(first.fields().lines(first.data()), second.fields().lines(second.data()));
  AnyOptions third = first;
  third.set("lr", first.get_if<SampleOptions>()->lr + 1e-16);
  EXPECT_NE(first.fields().lines(first.data()), third.fields().lines(third.data()));
  expect_error<ConfigError>([&] { second.set("mod", true); }, {"[Sample]", "'mod'", "did you mean 'mode'"});
  second.set("n", int64_t{0});
  expect_error<ConfigError>([&] { second.check(); }, {"[Sample] n is 0, expected an integer >= 1"});
}

}  // namespace
}  // namespace duet
