#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>
#include <torch/torch.h>

// Several poles on carts, with the equations and limits of Gymnasium's CartPole-v1. A pole that falls, leaves the track
// or has stood for 500 steps starts anew, from numbers of the default generator.
class CartPole {
 public:
  struct Moved {
    at::Tensor state;             // [poles, 4] that each has reached, before any starts anew
    at::Tensor fell, late;        // bool [poles, 1]: its episode ends, by a fall or since its time is over
    std::vector<double> returns;  // of the episodes that ended; each step gives a reward of 1
  };

  explicit CartPole(int64_t count) : poles_(static_cast<std::size_t>(count)), ages_(poles_.size()) {
    for (Pole& pole : poles_) pole = start();
  }

  at::Tensor state() const {
    at::Tensor state = torch::empty({static_cast<int64_t>(poles_.size()), 4});
    float* number = state.mutable_data_ptr<float>();
    for (const Pole& pole : poles_) {
      for (const double value : pole) *number++ = static_cast<float>(value);
    }
    return state;
  }

  // `action`: int64 [poles, 1], 0 pushes to the left and 1 to the right.
  Moved step(const at::Tensor& action) {
    const at::Tensor flags = torch::zeros({2, action.size(0), 1}, torch::kBool);
    for (std::size_t i = 0; i < poles_.size(); ++i) {
      poles_[i] = moved(poles_[i], action.const_data_ptr<int64_t>()[i] == 1);
      ++ages_[i];
    }
    Moved result{state(), flags[0], flags[1], {}};
    bool* fell = flags.mutable_data_ptr<bool>();
    bool* late = fell + poles_.size();
    for (std::size_t i = 0; i < poles_.size(); ++i) {
      fell[i] = std::abs(poles_[i][0]) > 2.4 || std::abs(poles_[i][2]) > 12 * 2 * M_PI / 360;
      late[i] = ages_[i] >= 500 && !fell[i];
      if (!fell[i] && !late[i]) continue;
      result.returns.push_back(ages_[i]);
      poles_[i] = start();
      ages_[i] = 0;
    }
    return result;
  }

 private:
  using Pole = std::array<double, 4>;  // place, speed, angle, spin

  static Pole start() {
    const at::Tensor numbers = torch::rand(4, torch::kDouble);
    Pole pole;
    for (std::size_t i = 0; i < 4; ++i) pole[i] = 0.1 * numbers.const_data_ptr<double>()[i] - 0.05;
    return pole;
  }

  static Pole moved(const Pole& pole, bool right) {
    const auto [x, speed, angle, spin] = pole;
    const double force = right ? 10.0 : -10.0;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const double push = (force + 0.05 * spin * spin * sine) / 1.1;
    const double turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
    const double pull = push - 0.05 * turn * cosine / 1.1;
    return {x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn};
  }

  std::vector<Pole> poles_;
  std::vector<int> ages_;
};
