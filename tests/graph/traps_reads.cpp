#include <cmath>
#include <limits>
#include "tests/graph/trap.h"

// Host code that reads values back: where they can be computed before a step they are compared before each replay.

namespace duet::testing {

namespace {

namespace F = torch::nn::functional;

constexpr const char* kReadsBack = "reads a value back to the host, ";
constexpr const char* kChanges = "reads a value back to the host that changes from step to step";

at::Tensor noisy(TwoLayers& net, const Batch& batch, bool with_noise) {
  const at::Tensor loss = plain_loss(net, batch);
  return with_noise ? loss + 0.1 * net.a->weight.square().sum() : loss;
}

// What a decoder asks of its attention mask.
bool all_above(const Batch& batch, double limit) { return (batch["input"].narrow(1, 0, 1) > limit).all().item<bool>(); }

// A loss that reads the number of the step, which the batch has.
using OfStep = std::function<at::Tensor(TwoLayers&, const Batch&, const at::Tensor& step)>;

std::function<TrapRun()> of_step(const OfStep& loss) {
  return [loss] {
    const auto with_step = [loss](TwoLayers& net, const Batch& batch) { return loss(net, batch, batch["id"][0]); };
    return TrapRun{.loss = with_step, .with_ids = true};
  };
}

// A loss over a tensor that is not the step's own.
using OfTensor = std::function<at::Tensor(TwoLayers&, const Batch&, at::Tensor&)>;

std::function<TrapRun()> of_tensor(const OfTensor& loss,
                                   const std::function<void(at::Tensor&, int64_t)>& between = {}) {
  return [=] {
    const auto tensor = std::make_shared<at::Tensor>(torch::zeros({}));
    TrapRun run{.loss = [=](TwoLayers& net, const Batch& batch) { return loss(net, batch, *tensor); }};
    run.net->register_buffer("held", *tensor);
    if (between) run.between = [=](BaseTrainer&, int64_t step) { between(*tensor, step); };
    return run;
  };
}

// Stays captured, with nothing said.
void captured(Traps& add, const std::string& name, std::function<TrapRun()> make, int64_t steps = 60) {
  add(name, std::move(make), "", steps);
  add.traps.back().stays_captured = true;
}

void add_values(Traps& add) {
  captured(add, "AMaskThatIsAlwaysTheSame", [] {
    return TrapRun{
        .loss = [](TwoLayers& net, const Batch& batch) { return noisy(net, batch, !all_above(batch, -1e9)); }};
  });
  captured(add, "AMaskThatIsAnotherOneAtTimes", [] {
    return TrapRun{.loss = [](TwoLayers& net, const Batch& batch) { return noisy(net, batch, all_above(batch, -1)); }};
  });
  captured(add, "AValueOfTwoThatTakeTurns", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             return noisy(net, batch, (step % 2).item<int64_t>() == 1);
           }));
  captured(add, "AValueOfThreeThatAreMixed", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             return plain_loss(net, batch) * (1 + (step * step % 11 % 3).item<double>());
           }));
  captured(add, "ABoolThatFlipsOnce", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             return noisy(net, batch, (step > 30).item<bool>());
           }));
  captured(add, "ANaN", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const auto value = (step * std::numeric_limits<double>::quiet_NaN()).item<double>();
             return noisy(net, batch, std::isnan(value));
           }));
  captured(add, "AZeroThatLosesItsSign", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const auto zero = ((step - 30).sign().to(at::kFloat) * 0.0).item<float>();
             return noisy(net, batch, std::signbit(zero));
           }));
  captured(add, "ANumberThatIsComplex", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const auto value = at::complex((step % 2).to(at::kFloat), torch::zeros({})).item<c10::complex<float>>();
             return plain_loss(net, batch) * value.real();
           }));
  captured(add, "ReadsOfSeveralTypes", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const auto tens = (step / 40).floor().item<int64_t>();
             const auto half = (step.to(at::kDouble) * 0 + 0.5).item<double>();
             return noisy(net, batch, (step >= 0).item<bool>()) * (half + static_cast<double>(tens));
           }));
  captured(add, "TensorsThatAreEqualAtTimes", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             return noisy(net, batch, at::equal(step % 3, step % 2));
           }));
  captured(add, "TensorsThatHoldNaNs", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const at::Tensor nan = step * std::numeric_limits<float>::quiet_NaN();
             return noisy(net, batch, at::equal(nan, nan.clone()));
           }));
  add("AValueThatIsAnotherOneAtEachStep", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
        return plain_loss(net, batch) * (1 + step.item<double>() / 100);
      }),
      kChanges);
  add("AValueAmongManyThatSeldomComeBack", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
        return plain_loss(net, batch) * (1 + (step % 31 / 2).floor().item<double>());
      }),
      kChanges, 200);
  add("AValueThatIsMostlyTheSame", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
        return plain_loss(net, batch) * (1 + (step * (step % 4 == 3)).item<double>() / 100);
      }),
      kChanges, 100);
}

void add_places(Traps& add) {
  captured(add, "AReadBehindDropout", [] {
    return TrapRun{.loss = [](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, true);
      const at::Tensor loss = F::cross_entropy(net.b(hidden), batch["target"]);
      return all_above(batch, -1) ? loss + torch::dropout(hidden, 0.5, true).sum() * 1e-3 : loss;
    }};
  });
  add.loss(
      "AReadOfSomethingRandom",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          return noisy(net, batch, (torch::rand({2}).sum() > 1).item<bool>());
        };
      },
      kReadsBack);
  add.loss(
      "AReadOfTheLoss",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          const at::Tensor loss = plain_loss(net, batch);
          return loss.item<double>() > 1.5 ? loss * 2 : loss;
        };
      },
      kReadsBack);
  captured(add, "AMemoryThatChangesBetweenItsReads",
           of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const at::Tensor value = step % 3;
             const auto before = value.item<int64_t>();
             value.add_(step % 2).mul_(2);
             return plain_loss(net, batch) * (1 + before + value.item<double>());
           }));
  captured(add, "AReadThatAnotherReadDecides", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const bool odd = (step % 2 == 1).item<bool>();
             return noisy(net, batch, odd && (batch["input"][0][0] > 0).item<bool>());
           }));
  captured(add, "AReadInBackward", of_step([](TwoLayers& net, const Batch& batch, const at::Tensor& step) {
             const at::Tensor loss = plain_loss(net, batch);
             loss.register_hook([step](const at::Tensor& gradient) {
               return (step % 2 == 1).item<bool>() ? gradient * 0.5 : gradient;
             });
             return loss;
           }));
}

void add_layers(Traps& add) {
  captured(add, "OneHotWhichLooksAtItsLabels", [] {
    return TrapRun{.loss = [](TwoLayers& net, const Batch& batch) {
      const at::Tensor labels = torch::one_hot(batch["target"], 5);
      return -(torch::log_softmax(net.forward(batch["input"]), 1) * labels).mean();
    }};
  });
  captured(add, "AWeightThatDecides", [] {
    return TrapRun{.loss = [](TwoLayers& net, const Batch& batch) {
      const at::Tensor bias = net.b->bias.detach();
      return noisy(net, batch, (bias[0] > bias[1]).item<bool>());
    }};
  });
  add.loss(
      "AWeightWhoseValueIsUsed",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          return plain_loss(net, batch) * (1 + net.b->bias[0].item<double>());
        };
      },
      kChanges);
}

void add_state(Traps& add) {
  add("ABufferThatTheStepHasChanged", of_tensor([](TwoLayers& net, const Batch& batch, at::Tensor& calls) {
        return noisy(net, batch, (calls.add_(1) > 20).item<bool>());
      }),
      kReadsBack);
  captured(add, "ABufferThatTheStepChangesLater", of_tensor([](TwoLayers& net, const Batch& batch, at::Tensor& calls) {
             const at::Tensor loss = noisy(net, batch, (calls > 20).item<bool>());
             calls.add_(1);
             return loss;
           }));
  captured(add, "ABufferThatIsReadAtItsOldValue", of_tensor([](TwoLayers& net, const Batch& batch, at::Tensor& calls) {
             const at::Tensor loss = noisy(net, batch, (calls.fmod(2)).item<float>() > 0);
             calls.add_(1);
             return loss;
           }));
  captured(add, "ABufferThatTheUserSets",
           of_tensor([](TwoLayers& net, const Batch& batch,
                        at::Tensor& flag) { return noisy(net, batch, flag.item<float>() > 0); },
                     [](at::Tensor& flag, int64_t step) { flag.fill_(step / 7 % 2); }));
  add("ATensorThatTheUserReplaces",
      of_tensor([](TwoLayers& net, const Batch& batch,
                   at::Tensor& flag) { return noisy(net, batch, flag.item<float>() > 0); },
                [](at::Tensor& flag, int64_t step) { flag = torch::full({}, step / 3 % 2, at::kFloat); }));
  add("AValueOfTheStepBefore", of_tensor([](TwoLayers& net, const Batch& batch, at::Tensor& last) {
        const at::Tensor loss = noisy(net, batch, (last > 1.5).item<bool>());
        last = loss.detach();
        return loss;
      }));
  add("AStatisticThatIsChangedInPlace", of_tensor([](TwoLayers& net, const Batch& batch, at::Tensor& mean) {
        const at::Tensor loss = noisy(net, batch, (mean > 1).item<bool>());
        mean.lerp_(loss.detach(), 0.2);
        return loss;
      }));
}

// The host fills a tensor by its address in the middle of the step, which nobody sees before.
void add_addresses(Traps& add) {
  for (const int64_t period : {2, 7, 25}) {
    add("ATensorThatTheHostFillsEvery" + std::to_string(period), [period] {
      const at::Tensor flag = torch::zeros({});
      return TrapRun{.loss = [=, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
        *flag.data_ptr<float>() = ++calls % period == 0 ? 1.0F : 0.0F;
        return noisy(net, batch, flag.item<float>() > 0);
      }};
    });
    add("AValueOfATensorThatTheHostFillsEvery" + std::to_string(period), [period] {
      const at::Tensor flag = torch::zeros({});
      return TrapRun{.loss = [=, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
        *flag.data_ptr<float>() = ++calls % period == 0 ? 1.0F : 0.0F;
        return noisy(net, batch, ((flag + 1) * 2).item<float>() > 3);
      }};
    });
  }
  add("ABatchThatTheHostFills", [] {
    return TrapRun{.loss =
                       [calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
                         *batch["id"].data_ptr<int64_t>() = ++calls > 30 ? 1 : 0;
                         return noisy(net, batch, batch["id"][0].item<int64_t>() > 0);
                       },
                   .with_ids = true};
  });
}

}  // namespace

void add_read_cases(Traps& add) {
  add_values(add);
  add_places(add);
  add_layers(add);
  add_state(add);
  add_addresses(add);
}

}  // namespace duet::testing
