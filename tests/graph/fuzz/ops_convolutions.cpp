#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor volume(const Tensor& image) { return image.reshape({-1, 1, 4, 4, 4}); }

void add_kernel_cases(OpTable& add) {
  add.layer<nn::Conv1d>("conv1d", "s>s", nn::Conv1dOptions(4, 4, 3).padding(1));
  add.layer<nn::ConvTranspose1d>("conv1d_transposed", "s>s",
                                 nn::ConvTranspose1dOptions(4, 4, 3).padding(1).bias(false));
  add.layer<nn::Conv2d>("conv2d", "i>i", nn::Conv2dOptions(4, 4, 3).padding(1));
  add.layer<nn::Conv2d>("conv2d_depthwise", "i>i", nn::Conv2dOptions(4, 4, 3).padding(1).groups(4));
  add.layer<nn::Conv2d>("conv2d_dilated", "i>i", nn::Conv2dOptions(4, 4, 3).padding(2).dilation(2));
  add.layer<nn::Conv2d>("conv2d_same", "i>i", nn::Conv2dOptions(4, 4, {2, 3}).padding(torch::kSame));
  add.layer<nn::ConvTranspose2d>("conv2d_transposed", "i>i", nn::ConvTranspose2dOptions(4, 4, 3).padding(1));
  add("conv2d_with_stride", "i>i", [](Site& site) -> Apply {
    auto down = site.module(nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(1).stride(2)), "_down");
    auto up = site.module(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 4, 2).stride(2)), "_up");
    return [down, up](X x) mutable { return bounded(up(torch::relu(down(x[0])))); };
  });
  add("conv2d_of_channels_last", "i>i", [](Site& site) -> Apply {
    auto layer = site.module(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)));
    return [layer](X x) mutable { return bounded(layer(x[0].contiguous(at::MemoryFormat::ChannelsLast))); };
  });
  add("conv2d_with_channels_last_weights", "i>i", [](Site& site) -> Apply {
    auto layer = site.module(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)));
    layer->weight.set_data(layer->weight.contiguous(at::MemoryFormat::ChannelsLast));
    return [layer](X x) mutable { return bounded(layer(x[0])); };
  });
  add("conv2d_of_itself", "i>i", [](Site&) -> Apply {
    return [](X x) {
      return bounded(F::conv2d(x[0], x[0].narrow(0, 0, 1).narrow(2, 0, 3).narrow(3, 0, 3).expand({4, 4, 3, 3}),
                               F::Conv2dFuncOptions().padding(1)));
    };
  });
  add("conv3d", "i>i", [](Site& site) -> Apply {
    auto layer = site.module(nn::Conv3d(nn::Conv3dOptions(1, 2, 3).padding(1)));
    return [layer](X x) mutable { return bounded(layer(volume(x[0])).sum(1)); };
  });
  add.plain("unfold_and_fold", "i>i", [](X x) {
    const Tensor columns = F::unfold(x[0], F::UnfoldFuncOptions(3).padding(1));
    return bounded(F::fold(columns.tanh(), F::FoldFuncOptions({4, 4}, {3, 3}).padding(1)));
  });
}

void add_pooling_cases(OpTable& add) {
  add.weighted("max_pool1d", "s>s", {8},
               [](X x, const Tensor& scale) { return torch::max_pool1d(bounded(x[0] * scale), 3, 1, 1); });
  add.plain("max_pool2d", "i>i", [](X x) { return torch::max_pool2d(x[0], 3, 1, 1); });
  add.plain("max_pool2d_with_places", "i>i", [](X x) {
    const auto [values, places] = torch::max_pool2d_with_indices(x[0], 2);
    return F::max_unpool2d(values.sin(), places, F::MaxUnpool2dFuncOptions(2));
  });
  add.plain("max_pool3d", "i>i", [](X x) { return torch::max_pool3d(volume(x[0]), 3, 1, 1).squeeze(1); });
  add.plain("avg_pool2d", "i>i",
            [](X x) { return torch::avg_pool2d(x[0], 3, 1, 1, false, /*count_include_pad=*/false); });
  add.plain("adaptive_avg_pool2d", "i>i", [](X x) { return x[0] - torch::adaptive_avg_pool2d(x[0], {1, 1}); });
  add.plain("adaptive_max_pool2d", "i>i",
            [](X x) { return x[0] - std::get<0>(torch::adaptive_max_pool2d(x[0], {2, 2})).repeat({1, 1, 2, 2}); });
  add.plain("fractional_max_pool2d", "i>i", [](X x) {
    return F::fractional_max_pool2d(x[0], F::FractionalMaxPool2dFuncOptions(2).output_size(2)).repeat({1, 1, 2, 2});
  });
}

void add_resampling_cases(OpTable& add) {
  add("interpolate", "i>i", [](Site& site) -> Apply {
    F::InterpolateFuncOptions options;
    options.size(std::vector<int64_t>{7, 6});
    const int64_t mode = site.number(0, 4);
    if (mode == 0) options.mode(torch::kNearest);
    if (mode == 1) options.mode(torch::kBilinear).align_corners(site.coin());
    if (mode == 2) options.mode(torch::kBicubic).align_corners(site.coin());
    if (mode == 3) options.mode(torch::kArea);
    if (mode == 4) options.mode(torch::kNearestExact);
    return [options](X x) { return torch::adaptive_avg_pool2d(F::interpolate(x[0], options), {4, 4}); };
  });
  add("pad", "i>i", [](Site& site) -> Apply {
    F::PadFuncOptions options({1, 2, 0, 1});
    const int64_t mode = site.number(0, 3);
    if (mode == 0) options.mode(torch::kConstant).value(0.5);
    if (mode == 1) options.mode(torch::kReflect);
    if (mode == 2) options.mode(torch::kReplicate);
    if (mode == 3) options.mode(torch::kCircular);
    return [options](X x) { return F::pad(x[0], options).narrow(2, 1, 4).narrow(3, 2, 4); };
  });
  add("grid_sample", "i>i", [](Site& site) -> Apply {
    F::GridSampleFuncOptions options;
    options.align_corners(false);
    if (site.coin()) options.mode(torch::kNearest);
    if (site.coin()) options.padding_mode(torch::kReflection);
    return [options](X x) {
      const Tensor turn = torch::tensor({0.8F, 0.2F, 0.1F, -0.3F, 0.9F, 0.0F}).view({1, 2, 3});
      const Tensor grid = torch::affine_grid_generator(turn.expand({x[0].size(0), 2, 3}), x[0].sizes(), false);
      return F::grid_sample(x[0], grid, options);
    };
  });
  add.plain("local_response_norm", "i>i",
            [](X x) { return F::local_response_norm(x[0], F::LocalResponseNormFuncOptions(2)); });
}

}  // namespace

void add_convolution_cases(OpTable& add) {
  add_kernel_cases(add);
  add_pooling_cases(add);
  add_resampling_cases(add);
}

}  // namespace duet::testing::fuzz
