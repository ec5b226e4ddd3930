#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/state_dict.h"

namespace duet {

inline std::string tensor_bytes(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().contiguous();
  return std::string(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
}

inline void expect_same_tensor(const std::string& name, const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type()) << name;
  EXPECT_EQ(a.sizes(), b.sizes()) << name;
  EXPECT_EQ(tensor_bytes(a), tensor_bytes(b)) << name;
}

// Names, types and bits.
inline void expect_same_state(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : a.tensors()) {
    ASSERT_TRUE(b.tensors().count(name)) << name;
    expect_same_tensor(name, tensor, b.tensor(name));
  }
  ASSERT_EQ(a.values().size(), b.values().size());
  for (const auto& [name, value] : a.values()) {
    ASSERT_TRUE(b.values().count(name)) << name;
    const StateValue& other = b.values().at(name);
    ASSERT_EQ(value.index(), other.index()) << name;
    if (const auto* number = std::get_if<double>(&value)) {
      EXPECT_EQ(std::bit_cast<uint64_t>(*number), std::bit_cast<uint64_t>(std::get<double>(other))) << name;
    } else {
      EXPECT_TRUE(value == other) << name;
    }
  }
}

// A small state that differs with `seed`.
inline StateDict sample_state(int64_t seed) {
  StateDict state;
  state.set("model.fc.weight", at::full({3, 5}, static_cast<double>(seed)).to(at::kFloat));
  state.set("model.fc.bias", at::arange(5, at::kDouble).add(static_cast<double>(seed)));
  state.set("optimizer.step", at::scalar_tensor(seed, at::kLong));
  state.set("epoch", seed);
  state.set("best", 0.1 * static_cast<double>(seed));
  return state;
}

// What is hard to keep: every type, odd numbers, shapes without elements, strides, aliases.
inline StateDict odd_state() {
  StateDict state;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool, at::kComplexFloat}) {
    const std::string name = c10::toString(type);
    state.set("model." + name, at::arange(7).remainder(2).to(type));
    state.set("state." + name + ".scalar", at::ones({}, at::TensorOptions().dtype(type)));
    state.set("state." + name + ".empty", at::empty({0, 3}, at::TensorOptions().dtype(type)));
  }
  const at::Tensor base = at::arange(24, at::kFloat).view({2, 3, 4}).set_requires_grad(true);
  state.set("model.base", base);
  state.set("model.same", base);
  state.set("model.transposed", base.transpose(0, 2));
  state.set("model.slice", base.slice(2, 1, 4, 2));
  state.set("model.expanded", at::ones({1}, at::kHalf).expand({5, 2}));
  const at::Tensor image = at::arange(36, at::kInt).view({1, 3, 3, 4});
  state.set("model.channels_last", image.contiguous(at::MemoryFormat::ChannelsLast));
  state.set("model.empty_huge", at::empty({0, int64_t{1} << 40}, at::kByte));
  state.set("state.nan_bits", at::tensor({0x7fc12345, -1, 0x7f800000, int(0x80000000)}, at::kInt).view(at::kFloat));
  state.set("model", at::ones({2}));
  state.set("modelling.x", at::zeros({1}, at::kChar));
  state.set("name with \"quotes\", \n and ünïcode", at::ones({1}));

  state.set("yes", true);
  state.set("no", false);
  state.set("integer.least", std::numeric_limits<int64_t>::min());
  state.set("integer.most", std::numeric_limits<int64_t>::max());
  state.set("number.whole", 1.0);
  state.set("number.minus_zero", -0.0);
  state.set("number.tenth", 0.1);
  state.set("number.least", std::numeric_limits<double>::denorm_min());
  state.set("number.infinite", -std::numeric_limits<double>::infinity());
  state.set("number.nan", std::bit_cast<double>(uint64_t{0xfff8000000abcdef}));
  state.set("text.empty", std::string());
  state.set("text.odd", std::string("a\0b\"\\\n\xc3\xbc", 8));
  state.set("text.bytes", std::string("\xff\x00\xfe", 3));
  return state;
}

}  // namespace duet
