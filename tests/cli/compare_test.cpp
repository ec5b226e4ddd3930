#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "cli/registry.h"
#include "core/task.h"
#include "tests/cli/program_call.h"
#include "tests/support/expect_error.h"

// What `duet compare` finds where two runs part.

namespace duet {
namespace {

// Changes the weights of the second run and later ones, at the beginning or the end of training.
struct PartingHook : Hook {
  PartingHook(bool parts, bool at_end) : parts(parts), at_end(at_end) {}
  std::string name() const override { return "parting"; }
  void before_train(TrainContext& context) override { change(context, !at_end); }
  void after_train(TrainContext& context) override { change(context, at_end); }
  void change(TrainContext& context, bool now) const {
    const at::NoGradGuard no_grad;
    if (!parts || !now) return;
    for (const auto& [name, weight] : context.task.named_parameters()) weight.mul_(1.5);
  }
  const bool parts, at_end;
};

TEST(Compare, SaysWhereTheModesPart) {
  const testing::ProgramFolder folder;
  struct Case {
    bool at_end;
    int64_t step;
    std::string place;  // the first that differs
  };
  for (const Case& c : {Case{false, 1, "loss"}, Case{true, 2, "weight 'conv1.weight'"}}) {
    const std::string type = c.at_end ? "PartsAtEnd" : "PartsAtStart";
    register_hook(type, [at_end = c.at_end, runs = 0](ConfigNode&, HookContext&) mutable {
      return std::make_unique<PartingHook>(++runs > 1, at_end);
    });
    const std::string hooks = "custom_hooks=[{type: " + type + "}]";
    const testing::Ran ran =
        testing::run_program({"compare", "base.yaml", hooks, "--steps", "2", "--bisect", "--json", "result.json"});
    EXPECT_EQ(ran.code, 1) << ran.text;
    expect_contains(ran.text,
                    {"NOT identical: first seen after step " + std::to_string(c.step) + ", in " + c.place,
                     c.at_end ? "every tensor of 2 steps has the same bits" : "first difference: step 1, loss"});
    const auto result = nlohmann::json::parse(read_bytes("result.json"));
    const auto& first = result["first_difference"];
    EXPECT_EQ(result["bit_identical"], false);
    EXPECT_EQ(first["step"], c.step);
    EXPECT_EQ(first["tensor"], c.place);
    EXPECT_EQ(first["eager_loss"] == first["graph_loss"], c.at_end);
  }
}

}  // namespace
}  // namespace duet
