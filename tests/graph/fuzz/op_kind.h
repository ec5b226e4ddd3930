#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>
#include <torch/torch.h>

// The ops that random programs are made of.

namespace duet {
class BaseTrainer;
}

namespace duet::testing::fuzz {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;
using X = const Tensors&;  // what an op is given

// Values have one of these types, so that every op fits wherever its type is given. R: rows of the batch, a multiple of
// 8.
//   m  float [R, 16], of any strides       i  float [R / 4, 4, 4, 4]        s  float [R / 2, 4, 8]
//   c  complex [R, 8]                      h  bfloat16 [R, 16]              b  bool [R, 16]
//   k  int64 [R], 0 to 7                   z  float [], a term of the loss
constexpr int64_t kColumns = 16;
constexpr int64_t kClasses = 8;

// What the user of a program has outside of the step.
struct User {
  std::vector<Tensor> kept;                                           // compared after every step
  Tensor ring = torch::zeros({64, kColumns});                         // batches may be a part of it
  std::vector<std::function<void(BaseTrainer&, int64_t)>> between{};  // host code before each step
};

// The place of one op in one program. Numbers that it draws are the same in both modes.
struct Site {
  nn::Module& model;
  std::string name;
  std::mt19937 random;
  User& user;

  int64_t number(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(random() % static_cast<uint64_t>(last - first + 1));
  }
  bool coin() { return number(0, 1) == 1; }
  Tensor parameter(at::IntArrayRef sizes) { return model.register_parameter(name, torch::randn(sizes) * 0.3); }
  Tensor buffer(const Tensor& tensor) { return model.register_buffer(name, tensor); }
  template <class Holder>
  Holder module(Holder holder, const std::string& suffix = "") {
    return model.register_module(name + suffix, holder);
  }
  // A place in the list of what is kept.
  std::size_t keep_place() {
    user.kept.emplace_back();
    return user.kept.size() - 1;
  }
};

using Apply = std::function<Tensor(X)>;

struct OpKind {
  std::string name;
  std::string takes;  // types of its arguments
  char gives;
  std::function<Apply(Site&)> make;
  enum class Host { kSame, kChanges } host = Host::kSame;  // whether its host code does the same at every step
};

// Values stay within reach of float, however many ops there are.
inline Tensor bounded(const Tensor& x) { return x.tanh(); }
// Of a layer that gives its state as well.
inline const Tensor& output_of(const Tensor& result) { return result; }
template <class State>
const Tensor& output_of(const std::tuple<Tensor, State>& result) {
  return std::get<0>(result);
}

inline Tensor minus(const Tensor& result, const Tensor& x) { return bounded(x - result); }

// What ops of the dispatcher get, and what is made of what they give.
struct ByName {
  Tensor (*fit)(const Tensor& x) = [](const Tensor& x) { return x; };  // of each value
  Tensor (*end)(const Tensor& result, const Tensor& x) = [](const Tensor& result, const Tensor&) { return result; };
  std::vector<c10::IValue> more{};  // arguments behind the values; further ones are the defaults
  std::size_t result = 0;           // of several
};

struct OpTable {
  std::vector<OpKind> kinds;
  // Ops by their names in the dispatcher ("add.Tensor"), with spaces between them.
  void by_name(const std::string& names, const std::string& signature, const ByName& how = {});
  // signature: "mm>m".
  void operator()(const std::string& name, const std::string& signature, std::function<Apply(Site&)> make) {
    kinds.push_back({name, signature.substr(0, signature.find('>')), signature.back(), std::move(make)});
  }
  // Without anything of its own.
  void plain(const std::string& name, const std::string& signature, Tensor (*apply)(X)) {
    (*this)(name, signature, [apply](Site&) -> Apply { return apply; });
  }
  // With a parameter of its own.
  void weighted(const std::string& name, const std::string& signature, std::vector<int64_t> sizes,
                Tensor (*apply)(X, const Tensor& weight)) {
    (*this)(name, signature, [sizes = std::move(sizes), apply](Site& site) -> Apply {
      return [apply, weight = site.parameter(sizes)](X x) { return apply(x, weight); };
    });
  }
  // With a layer of its own.
  template <class Holder, class Options>
  void layer(const std::string& name, const std::string& signature, const Options& options) {
    (*this)(name, signature, [options](Site& site) -> Apply {
      return [layer = site.module(Holder(options))](X x) mutable { return bounded(output_of(layer(x[0]))); };
    });
  }
  void changing(const std::string& name, const std::string& signature, std::function<Apply(Site&)> make) {
    (*this)(name, signature, std::move(make));
    kinds.back().host = OpKind::Host::kChanges;
  }
};

const std::vector<OpKind>& op_kinds();

void add_view_cases(OpTable& add);
void add_pointwise_cases(OpTable& add);
void add_in_place_cases(OpTable& add);
void add_out_cases(OpTable& add);
void add_indexing_cases(OpTable& add);
void add_list_cases(OpTable& add);
void add_reduction_cases(OpTable& add);
void add_random_cases(OpTable& add);
void add_convolution_cases(OpTable& add);
void add_layer_cases(OpTable& add);
void add_algebra_cases(OpTable& add);
void add_dtype_cases(OpTable& add);
void add_loss_cases(OpTable& add);
void add_gradient_cases(OpTable& add);
void add_constant_cases(OpTable& add);
void add_kept_cases(OpTable& add);
void add_read_cases(OpTable& add);
void add_changing_cases(OpTable& add);

inline Tensor as_matrix(const Tensor& x) { return x.reshape({-1, kColumns}); }
// Memory of its own that may be changed in place.
inline Tensor own(const Tensor& x) { return x * 1; }

}  // namespace duet::testing::fuzz
