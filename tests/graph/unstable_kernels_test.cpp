#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include "base/device.h"
#include "base/error.h"
#include "tests/graph/cuda/captured_steps.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/log_lines.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// Kernels whose bits differ from run to run, such as those that add up with atomics: a comparison tells them from a
// wrong replay. An op whose result a test chooses stands in for them.

namespace duet {
namespace {

using at::Tensor;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::same_bits;
using testing::Setting;
using testing::Steps;
using testing::TestObserver;

// What the n-th call since `calls` was 0 adds.
int64_t calls = 0;
std::function<double(int64_t call)> noise;

Tensor add_noise(const Tensor& values) { return values + noise(++calls); }

TORCH_LIBRARY_FRAGMENT(duet_tests, library) {
  library.def("add_noise(Tensor values) -> Tensor");
  library.impl("add_noise", torch::dispatch(c10::DispatchKey::CPU, add_noise));
}

Tensor noisy(const Tensor& values) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("duet_tests::add_noise", "");
  return op.typed<Tensor(const Tensor&)>().call(values.detach());
}

// Its gradients, too, are those of the noise.
testing::ToyTask noisy_task() {
  return testing::mlp_with_loss([] { return [](const Tensor& loss) { return loss * noisy(loss); }; });
}

struct InStepNoise : TestObserver {
  using TestObserver::TestObserver;
  void in_step(StepView& context) override {
    TestObserver::in_step(context);
    mean.add_(noisy(mean) - mean);
  }
};

class UnstableKernels : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    calls = 0;
    noise = [](int64_t call) { return 1e-3 * static_cast<double>(call); };
  }
  static Steps steps(Setting setting) {
    setting.graph.verify_interval = 1;
    return {setting, GetParam()};
  }
};

TEST_P(UnstableKernels, AreToldFromAWrongReplayAndReplaysGoOn) {
  for (const bool splits : {false, true}) {
    Steps steps = this->steps({.task = noisy_task(), .splits = splits});
    const std::string text = testing::stderr_of([&] {
      for (int n = 0; n < 12; ++n) steps.step();
    });
    const SignatureReport report = steps.report();
    EXPECT_EQ(report.state, "captured") << report.reason;
    EXPECT_GE(report.nondeterministic, 5);
    const std::string warning =
        "is not deterministic: run op by op from one state, duet_tests::add_noise, after the last read of";
    EXPECT_THAT(text, HasSubstr(warning));
    EXPECT_EQ(text.find(warning), text.rfind(warning)) << "said once";
    EXPECT_THAT(text, HasSubstr("setDeterministicAlgorithms"));
  }
}

TEST_P(UnstableKernels, OfOneRankAreItsOwn) {
  const auto ranks = std::make_shared<testing::FakeCommunicator>(0, 2, [](const Tensor& sum) { sum.mul_(2); });
  Steps steps = this->steps({.task = noisy_task(), .ranks = ranks});
  for (int n = 0; n < 12; ++n) steps.step();
  EXPECT_EQ(steps.report().state, "captured") << steps.report().reason;
  EXPECT_GE(steps.report().nondeterministic, 5);
}

// An eager run of the steps beside the captured one, both with the noise of eager mode where it counts.
class BothWays {
 public:
  BothWays(const Setting& setting, bool by_device)
      : by_device_(by_device), eager_(setting, by_device), graph_(setting, by_device) {}

  // Of the captured step's calls one counts; the others get noise of their own. `failure` may throw in one of them.
  void step(const std::function<void(int64_t call)>& failure = [](int64_t) {}) {
    const double right = 1e-3 * static_cast<double>(n_);
    noise = [right](int64_t) { return right; };
    eager_.next_path();
    const StateDict random = random_state();
    wanted_ = eager_.run(/*captured=*/false);
    random_after_ = random_state();
    set_random_state(random);
    const bool captures = by_device_ && n_ == 4;  // the stand-in for a device runs what it captures
    graph_.next_path();
    const int64_t counts = captures ? 2 : 1;
    ++n_;
    calls = 0;
    noise = [=](int64_t call) {
      failure(call);
      return call == counts ? right : static_cast<double>(call);
    };
    given_ = graph_.run();
  }
  void expect_same_results() const { EXPECT_TRUE(same_bits(wanted_.loss, given_.loss)) << "step " << n_ - 1; }
  void expect_same_state() {
    for (std::size_t i = 0; i < eager_.train_step().parameters().size(); ++i) {
      const auto& [name, parameter] = graph_.train_step().parameters()[i];
      const Tensor& expected = eager_.train_step().parameters()[i].second;
      EXPECT_TRUE(same_bits(expected, parameter)) << name << " after step " << n_ - 1;
      EXPECT_TRUE(same_bits(expected.grad(), parameter.grad())) << "the gradient of " << name << ", step " << n_ - 1;
    }
    EXPECT_TRUE(same_bits(random_after_.tensor("cpu"), random_state().tensor("cpu"))) << "after step " << n_ - 1;
  }
  SignatureReport report() const { return graph_.report(); }

 private:
  bool by_device_;
  Steps eager_, graph_;
  int64_t n_ = 0;
  StepResult wanted_, given_;
  StateDict random_after_;
};

// The eager run, the replay and the three runs that judge the difference: whichever fails, training goes on with
// eager's bits or ends with the error; what fails behind the eager run leaves its state.
TEST_P(UnstableKernels, AnErrorInAnyRunOfAComparisonSpoilsNothing) {
  for (const bool short_of_memory : {false, true}) {
    for (const int64_t fails : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::to_string(fails) + (short_of_memory ? ", no memory" : ""));
      BothWays steps({.task = noisy_task(), .graph = {.verify_interval = 1}}, GetParam());
      for (int n = 0; n < 8; ++n) {
        steps.step();
        steps.expect_same_results();
        steps.expect_same_state();
      }
      EXPECT_GE(steps.report().nondeterministic, 1);
      bool ended = false;
      try {
        steps.step([&](int64_t call) {
          if (call != fails) return;
          TORCH_CHECK_WITH(OutOfMemoryError, !short_of_memory, "no memory");
          throw std::runtime_error("a kernel failed");
        });
        if (fails > 1) steps.expect_same_results();  // else it is the replay, which had noise of its own
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), AnyOf(HasSubstr("a kernel failed"), HasSubstr("no memory")));
        ended = true;
      }
      EXPECT_EQ(ended, fails != 2 && !short_of_memory);
      if (fails > 1) steps.expect_same_state();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, UnstableKernels, ::testing::Bool(),
                         [](const auto& by) { return by.param ? "ByDeviceGraphs" : "ByCpuPrograms"; });

// The noise is in a moving mean alone, the fault in a weight.
TEST(UnstableKernel, HidesNoFaultOfAReplayInOtherTensors) {
  calls = 0;
  noise = [](int64_t call) { return 1e-3 * static_cast<double>(call); };
  Setting setting;
  setting.graph.verify_interval = 1;
  Steps steps(setting, /*by_device=*/true, std::make_unique<InStepNoise>());
  for (int n = 0; n < 8; ++n) steps.step();
  EXPECT_EQ(steps.report().state, "captured") << steps.report().reason;
  EXPECT_GE(steps.report().nondeterministic, 1);
  const Tensor weight = steps.train_step().parameters().front().second.detach();
  steps.log->after_replay = [weight] { weight.flatten()[0].add_(1); };
  steps.step();
  EXPECT_EQ(steps.report().state, "eager");
  EXPECT_THAT(steps.report().reason, HasSubstr("its replay differs from its eager run, first in"));
}

}  // namespace
}  // namespace duet
