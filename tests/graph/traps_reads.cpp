#include <cmath>
#include <limits>
#include "tests/graph/trap.h"

// Host code that reads values back: where they can be computed before a step they are compared before each replay.

namespace duet::testing {

namespace {

using at::Tensor;

constexpr const char* kReadsBack = "reads a value back to the host, ";
constexpr const char* kChanges = "reads a value back to the host that changes from step to step";

// What a decoder asks of its attention mask.
bool all_above(const Batch& batch, double limit) { return (batch["input"].narrow(1, 0, 1) > limit).all().item<bool>(); }

// A loss that `read` decides about, a bool, or that it scales: by what it reads off the number of the step.
template <class Read>
StepLoss of_step(Read read) {
  return [read](TwoLayers& net, const Batch& batch) {
    const auto value = read(batch["id"][0]);
    if constexpr (std::is_same_v<decltype(value), const bool>) {
      return noisy(net, batch, value);
    } else {
      return plain_loss(net, batch) * (1 + value);
    }
  };
}

void add_values(Traps& add) {
  add("AValueOfThreeThatAreMixed", captured(),
      of_step([](const Tensor& step) { return (step * step % 11 % 3).item<double>(); }));
  add("ANaN", captured(), of_step([](const Tensor& step) {
        return std::isnan((step * std::numeric_limits<double>::quiet_NaN()).item<double>());
      }));
  add("AZeroThatLosesItsSign", captured(), of_step([](const Tensor& step) {
        return std::signbit(((step - 30).sign().to(at::kFloat) * 0.0).item<float>());
      }));
  add("ANumberThatIsComplex", captured(), of_step([](const Tensor& step) {
        return at::complex((step % 2).to(at::kFloat), torch::zeros({})).item<c10::complex<float>>().real();
      }));
  add("ReadsOfSeveralTypes", captured(), of_step([](const Tensor& step) {
        const auto tens = (step / 40).floor().item<int64_t>();
        const auto half = (step.to(at::kDouble) * 0 + 0.5).item<double>();
        return ((step >= 0).item<bool>() ? 1 : 2) * (half + static_cast<double>(tens));
      }));
  add("TensorsThatAreEqualAtTimes", captured(),
      of_step([](const Tensor& step) { return at::equal(step % 3, step % 2); }));
  add("AValueAmongManyThatSeldomComeBack", {kChanges, 200},
      of_step([](const Tensor& step) { return (step % 31 / 2).floor().item<double>(); }));
}

void add_places(Traps& add) {
  add("AReadBehindDropout", captured(), [](TwoLayers& net, const Batch& batch) {
    const Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, true);
    const Tensor loss = loss_of(net, hidden, batch);
    return all_above(batch, -1) ? loss + torch::dropout(hidden, 0.5, true).sum() * 1e-3 : loss;
  });
  add("AReadOfSomethingRandom", kReadsBack,
      [](TwoLayers& net, const Batch& batch) { return noisy(net, batch, (torch::rand({2}).sum() > 1).item<bool>()); });
  add("AReadOfTheLoss", std::string("aten::_local_scalar_dense ") + kReadsBack, [](TwoLayers& net, const Batch& batch) {
    const Tensor loss = plain_loss(net, batch);
    return loss.item<double>() > 1.5 ? loss * 2 : loss;
  });
  add("AMemoryThatChangesBetweenItsReads", captured(), of_step([](const Tensor& step) {
        const Tensor value = step % 3;
        const auto before = value.item<double>();
        value.add_(step % 2).mul_(2);
        return before + value.item<double>();
      }));
  add("AReadInBackward", captured(), [](TwoLayers& net, const Batch& batch) {
    const Tensor loss = plain_loss(net, batch);
    loss.register_hook([step = batch["id"][0]](const Tensor& gradient) {
      return (step % 2 == 1).item<bool>() ? gradient * 0.5 : gradient;
    });
    return loss;
  });
  add("OneHotWhichLooksAtItsLabels", captured(), [](TwoLayers& net, const Batch& batch) {
    const Tensor labels = torch::one_hot(batch["target"], 5);
    return -(torch::log_softmax(net.forward(batch["input"]), 1) * labels).mean();
  });
}

// A tensor that is not the step's own: what is read of it, and who changes it.
struct Held {
  bool (*read)(Tensor& held);
  void (*later)(Tensor& held, const Tensor& loss) = nullptr;  // in the step
  void (*between)(Tensor& held, int64_t step) = nullptr;
};

MakeRun of_tensor(const Held& held) {
  return [held](StepRun& run) {
    const auto tensor = std::make_shared<Tensor>(torch::zeros({}));
    run.net->register_buffer("held", *tensor);
    run.loss = [held, tensor](TwoLayers& net, const Batch& batch) {
      Tensor loss = noisy(net, batch, held.read(*tensor));
      if (held.later != nullptr) held.later(*tensor, loss);
      return loss;
    };
    if (held.between != nullptr) run.between = [=](BaseTrainer&, int64_t step) { held.between(*tensor, step); };
  };
}

void add_state(Traps& add) {
  constexpr auto read_flag = [](Tensor& flag) { return flag.item<float>() > 0; };
  constexpr auto count = [](Tensor& calls, const Tensor&) { calls.add_(1); };
  add("ABufferThatTheStepHasChanged", kReadsBack,
      of_tensor({[](Tensor& calls) { return (calls.add_(1) > 20).item<bool>(); }}));
  add("ABufferThatTheStepChangesLater", captured(),
      of_tensor({[](Tensor& calls) { return (calls > 20).item<bool>(); }, count}));
  add("ABufferThatTheUserSets", captured(),
      of_tensor({read_flag, nullptr, [](Tensor& flag, int64_t step) { flag.fill_(step / 7 % 2); }}));
  add("ATensorThatTheUserReplaces", "", of_tensor({read_flag, nullptr, [](Tensor& flag, int64_t step) {
                                                     flag = torch::full({}, step / 3 % 2, at::kFloat);
                                                   }}));
  add("AValueOfTheStepBefore", "",
      of_tensor({[](Tensor& last) { return (last > 1.5).item<bool>(); },
                 [](Tensor& last, const Tensor& loss) { last = loss.detach(); }}));
}

// The host fills a tensor by its address in the middle of the step, which nobody sees before.
void add_filled_by_the_host(Traps& add) {
  for (const int64_t period : {2, 25}) {
    for (const bool derived : {false, true}) {
      add((derived ? "AValueOfATensorThatTheHostFillsEvery" : "ATensorThatTheHostFillsEvery") + std::to_string(period),
          "", [=](StepRun& run) {
            const Tensor flag = torch::zeros({});
            run.loss = [=, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
              *flag.data_ptr<float>() = ++calls % period == 0 ? 1.0F : 0.0F;
              return noisy(net, batch, (derived ? (flag + 1) * 2 - 3 : flag).item<float>() > 0);
            };
          });
    }
  }
  add("ABatchThatTheHostFills", "", [calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
    *batch["id"].data_ptr<int64_t>() = ++calls > 30 ? 1 : 0;
    return noisy(net, batch, batch["id"][0].item<int64_t>() > 0);
  });
}

}  // namespace

void add_read_cases(Traps& add) {
  add_values(add);
  add_places(add);
  add_state(add);
  add_filled_by_the_host(add);
}

}  // namespace duet::testing
