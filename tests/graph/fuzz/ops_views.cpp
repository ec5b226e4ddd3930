#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor blocks(const Tensor& x) { return x.reshape({-1, 4, 4}); }

}  // namespace

void add_view_cases(OpTable& add) {
  add.by_name("tril triu clone alias msort", "m>m");
  // from one type to another
  add.plain("to_image", "m>i", [](X x) { return x[0].reshape({-1, 4, 4, 4}); });
  add.plain("to_sequence", "m>s", [](X x) { return x[0].reshape({-1, 4, 8}); });
  add.plain("to_complex", "m>c", [](X x) { return torch::view_as_complex(x[0].reshape({-1, 8, 2})); });
  add.plain("to_half", "m>h", [](X x) { return x[0].to(at::kBFloat16); });
  add.plain("to_mask", "m>b", [](X x) { return x[0] > 0.1; });
  add.plain("to_indices", "m>k", [](X x) { return x[0].narrow(1, 3, 8).argmax(1); });
  add.plain("to_term", "m>z", [](X x) { return x[0].mean(); });
  add.plain("image_to_matrix", "i>m", [](X x) { return as_matrix(x[0]); });
  add.plain("sequence_to_matrix", "s>m", [](X x) { return as_matrix(x[0]); });
  add.plain("complex_to_matrix", "c>m", [](X x) { return as_matrix(torch::view_as_real(x[0])); });
  add.plain("half_to_matrix", "h>m", [](X x) { return x[0].to(at::kFloat); });
  add.plain("mask_to_matrix", "b>m", [](X x) { return x[0].to(at::kFloat); });
  add.plain("scale_by_term", "mz>m", [](X x) { return bounded(x[0] * x[1]); });

  // other strides
  add.plain("columns_first", "m>m", [](X x) { return x[0].t().contiguous().t(); });
  add.plain("transpose", "m>m", [](X x) { return x[0].transpose(0, 1).reshape({-1, kColumns}); });
  add.plain("permute", "m>m", [](X x) { return as_matrix(blocks(x[0]).permute({0, 2, 1})); });
  add.plain("channels_last", "i>i", [](X x) { return x[0].contiguous(at::MemoryFormat::ChannelsLast); });
  add("as_strided", "m>m", [](Site& site) -> Apply {
    return
        [step = site.number(4, 16)](X x) { return x[0].contiguous().as_strided({x[0].size(0), kColumns}, {step, 1}); };
  });

  // parts
  add("narrow", "m>m", [](Site& site) -> Apply {
    return [at = site.number(1, 15)](X x) {
      return torch::cat({x[0].narrow(1, at, kColumns - at), x[0].narrow(1, 0, at)}, 1);
    };
  });
  add.plain("slice_with_steps", "m>m",
            [](X x) { return torch::cat({x[0].slice(1, 0, kColumns, 2), x[0].slice(1, 1, kColumns, 2)}, 1); });
  add("select", "m>m", [](Site& site) -> Apply {
    return [row = site.number(0, 7), column = site.number(0, 15)](X x) {
      return bounded(x[0] + x[0].select(1, column).unsqueeze(1) * x[0][row]);
    };
  });
  add.plain("diagonal", "m>m", [](X x) { return bounded(x[0].narrow(1, 0, 8).diagonal().sum() - x[0]); });
  add.plain("diag_embed", "m>m", [](X x) { return as_matrix(x[0].narrow(1, 2, 4).diag_embed()); });
  add.plain("split", "m>m", [](X x) {
    const Tensors parts = x[0].split(4, 1);
    return torch::cat({parts[3], parts[1], parts[1], parts[0]}, 1);
  });
  add.plain("split_with_sizes", "m>m", [](X x) {
    const Tensors parts = x[0].split_with_sizes({1, 5, 10}, 1);
    return torch::cat({parts[2], parts[0], parts[1]}, 1);
  });
  add.plain("unbind", "m>m", [](X x) {
    Tensors rows = x[0].unbind(0);
    std::swap(rows.front(), rows.back());
    return torch::stack(rows);
  });

  // more of the same
  add.plain("expand", "m>m", [](X x) { return x[0].narrow(0, 1, 1).expand_as(x[0]); });
  add.plain("repeat", "m>m", [](X x) { return x[0].narrow(1, 3, 4).repeat({1, 4}); });
  add.plain("repeat_interleave", "m>m", [](X x) { return x[0].narrow(1, 0, 8).repeat_interleave(2, 1); });
  add.plain("repeat_interleave_by_tensor", "mk>z",
            [](X x) { return x[0].repeat_interleave(x[1] + 1, 0).sin().mean(); });
  add.plain("unfold", "m>m", [](X x) { return as_matrix(x[0].unfold(1, 4, 4).transpose(1, 2)); });

  // another order
  add.plain("flip", "m>m", [](X x) { return x[0].flip(1); });
  add("roll", "m>m", [](Site& site) -> Apply { return [by = site.number(1, 15)](X x) { return x[0].roll(by, 1); }; });
  add.plain("pixel_shuffle", "i>i",
            [](X x) { return torch::pixel_unshuffle(torch::pixel_shuffle(x[0], 2).tanh(), 2); });
  add.plain("channel_shuffle", "i>i", [](X x) { return torch::channel_shuffle(x[0], 2); });

  // another shape in between
  add.plain("squeeze", "m>m", [](X x) { return x[0].unsqueeze(1).unsqueeze(-1).squeeze(); });
  add.plain("view_of_bits", "m>m", [](X x) {
    return x[0].detach().contiguous().view(at::kInt).bitwise_and(0xFF).to(at::kFloat) / 255 - x[0];
  });

  // views put back
  add.plain("slice_scatter", "m>m", [](X x) { return x[0].slice_scatter(x[0].narrow(1, 0, 4).tanh(), 1, 2, 6); });
  add.plain("select_scatter", "m>m", [](X x) { return x[0].select_scatter(x[0][3].sin(), 0, 1); });
  add.plain("diagonal_scatter", "m>m", [](X x) { return x[0].diagonal_scatter(x[0].diagonal().cos()); });
  add.plain("as_strided_scatter", "m>m", [](X x) {
    return x[0].contiguous().as_strided_scatter(x[0].narrow(0, 0, 4).narrow(1, 0, 4).tanh(), {4, 4}, {16, 2});
  });

  // memory
  add.plain("detach", "m>m", [](X x) { return x[0].detach() + x[0]; });
  add.plain("narrow_copy", "m>m",
            [](X x) { return at::narrow_copy(x[0].detach(), 1, 1, 15).sum(1, true) * x[0].sin(); });
  // As cuDNN's LSTM sees its weights.
  add.weighted("weight_by_its_memory", "m>m", {kColumns}, [](X x, const Tensor& weight) {
    const Tensor shift = torch::empty({0}).set_(weight.storage()).narrow(0, 0, kColumns);
    return bounded(x[0] * weight + shift);
  });
  add.plain("gap_in_memory", "m>m", [](X x) { return torch::cat({x[0], x[0].sin()}, 1).narrow(1, 5, kColumns); });
}

}  // namespace duet::testing::fuzz
