#include "tests/graph/step_cases.h"

namespace duet::testing {

void add_tensor_cases(Cases& add) {
  // views and aliases
  add("ViewsOfInputs", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor x = batch["x"];
      const Tensor y = x.view({8, 4, 4}).transpose(1, 2).reshape({8, 16}) + x.flip(1).narrow(0, 0, 8);
      const Tensor z = x.t().slice(1, 0, 8, 2).t().repeat({2, 1});
      return F::cross_entropy(n.b(torch::relu(n.a(y + z))), batch["target"]);
    };
  });
  add("AliasingOutputs", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]);
      const auto chunks = h.chunk(2, 1);
      const auto splits = h.split_with_sizes({1, 3, 4}, 1);
      const auto rows = h.unbind(0);
      const Tensor mixed = torch::cat({chunks[1], chunks[0]}, 1) + splits[0].expand({8, 8}) + rows[3].expand_as(h) +
                           h.diagonal().unsqueeze(0) + torch::stack(h.unbind(1), 1) + h.as_strided({8, 8}, {1, 8});
      return F::cross_entropy(n.b(mixed), batch["target"]);
    };
  });
  // As cuDNN's LSTM sees its weights, which are others at each step.
  add("WeightsByTheirMemory", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor shift = torch::empty({0}).set_(n.a->bias.storage()).narrow(0, 0, 8);
      return F::cross_entropy(n.b(torch::relu(n.a(batch["x"]) + shift)), batch["target"]);
    };
  });
  add("InPlaceOnActivations", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor h = n.a(batch["x"]);
      h.mul_(2).add_(1);
      h = h.relu_() * 1;
      h.narrow(1, 0, 4).mul_(0.5);
      h[2].add_(1);
      h.view({4, 2, 8}).select(1, 1).sub_(0.25);
      return F::cross_entropy(n.b(h), batch["target"]);
    };
  });
  add("InPlaceViewChanges", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor h = n.a(batch["x"]) * 1;
      h.unsqueeze_(0);
      h.transpose_(1, 2);
      h.squeeze_(0);
      h.t_();
      const Tensor constant = torch::tensor({1.0F, 2.0F, 3.0F}).unsqueeze_(1);
      h = h * constant.sum();
      Tensor y = batch["x"].clone();
      const Tensor before = y.sum(0).slice(0, 0, 5);
      y.t_();
      y = y.narrow(0, 0, 5).sum(1) + before;
      return F::cross_entropy(n.b(h) + y, batch["target"]);
    };
  });
  add("OutIntoEmptyTensors", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor sum = torch::empty({0});
      Tensor product = torch::empty({0});
      {
        const at::NoGradGuard no_grad;
        at::add_out(sum, batch["x"], batch["x"]);
        at::matmul_out(product, batch["x"], sum.t());
      }
      return F::cross_entropy(n.b(n.a(sum)) * product.mean(), batch["target"]);
    };
  });
  add("Resize", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor buffer = torch::empty({2});
      buffer.resize_({8, 16}).copy_(batch["x"]).mul_(2);
      return F::cross_entropy(n.b(n.a(buffer)), batch["target"]);
    };
  });

  add("ConjugatesAndImaginaryParts", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor c = torch::view_as_complex(n.a(batch["x"]).view({8, 4, 2}).contiguous());
      const Tensor d = torch::fft::ifft(torch::fft::fft(c) * c.conj()) + at::imag(c.matmul(c.mH()).matmul(c));
      return F::cross_entropy(n.b(torch::view_as_real(d.resolve_conj()).flatten(1).tanh()), batch["target"]);
    };
  });

  // tensors made inside the loss
  add("HostConstants", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor weights = torch::tensor({1.0F, 2.0F, 0.5F, 1.5F, 1.0F});
      const Tensor order = torch::tensor({4, 3, 2, 1, 0});
      const Tensor logits = n.b(n.a(batch["x"])).index_select(1, order);
      return F::cross_entropy(logits, batch["target"], F::CrossEntropyFuncOptions().weight(weights)) *
                 torch::scalar_tensor(1.5) +
             torch::tensor(0.25);
    };
  });
  add("HostConstantsChangedInPlace", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor weights = torch::tensor({1.0F, 2.0F, 0.5F, 1.5F, 1.0F});
      const Tensor first = weights.square();
      weights.mul_(0.5).add_(1);
      weights[2].fill_(0.75);
      Tensor filled = torch::empty({5});
      std::fill_n(filled.data_ptr<float>(), 5, 2.0F);
      filled.sub_(weights);
      const Tensor logits = n.b(n.a(batch["x"])) * filled + first;
      return F::cross_entropy(logits, batch["target"], F::CrossEntropyFuncOptions().weight(weights));
    };
  });
  add("HostConstantsThatTheHostReads", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor logits = n.b(n.a(batch["x"]));
      return F::cross_entropy(logits * torch::arange(5).sum().item<double>(), batch["target"]) +
             logits.quantile(0.3) * 0.1;  // which compares a number of its own
    };
  });
  add("Factories", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor positions = torch::arange(8, torch::kFloat).unsqueeze(1) / torch::linspace(1, 2, 8);
      const Tensor mask = torch::ones({8, 8}).tril() + torch::eye(8) + torch::full({8, 8}, 0.1) + torch::zeros({8, 8});
      const Tensor h = (n.a(batch["x"]) + positions) * mask;
      Tensor filled = torch::empty({8, 8}).fill_(0.5);
      filled += torch::zeros_like(h) + torch::ones_like(h) + h.new_full({8, 8}, 0.5);
      return F::cross_entropy(n.b(h * filled), batch["target"]);
    };
  });

  // indexing
  add("MaskedFill", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor h = n.a(batch["x"]);
      h = h.masked_fill(h > 0.5, 0.5).masked_fill(batch["x"].narrow(1, 0, 8) > 1, -1);
      h.masked_fill_(batch["x"].narrow(1, 8, 8) < -1, 0.25);
      return F::cross_entropy(torch::where(h > 0, n.b(h).sum(1, true), h).narrow(1, 0, 5) + n.b(h), batch["target"]);
    };
  });
  add("IndexPutAndGather", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]);
      const Tensor t = batch["target"];
      Tensor y = h.index_put({t}, h.detach() * 0.5, /*accumulate=*/true);
      y = y.index({torch::indexing::Slice(), torch::tensor({1, 1, 0, 2, 3, 4, 5, 7})});
      y = y + h.gather(1, t.unsqueeze(1)) + h.index_select(0, t) + h.index_add(0, t, h, 0.5);
      Tensor z = y.clone();
      z.index_put_({t, t}, torch::ones({8}));
      z.index_fill_(1, torch::tensor({6}), 0.5);
      return F::cross_entropy(n.b(z), t);
    };
  });
  add("Scatter", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor t = batch["target"].unsqueeze(1);
      const Tensor logits = n.b(n.a(batch["x"]));
      const Tensor hot = torch::zeros({8, 5}).scatter_(1, t, 1);
      const Tensor sums = torch::zeros({5, 5}).scatter_add(0, t.expand({8, 5}), logits);
      const Tensor most = torch::zeros({5, 5}).scatter_reduce(0, t.expand({8, 5}), logits, "amax");
      return -(torch::log_softmax(logits, 1) * hot).sum(1).mean() + sums.square().mean() + most.mean() +
             logits.scatter(1, t, 0.5).mean();
    };
  });
  add("Cumulative", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]);
      return F::cross_entropy(n.b(h.cumsum(1) + h.logcumsumexp(0) + std::get<0>(h.cummax(1))), batch["target"]);
    };
  });
  add("SortTopkExtremes", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]);
      Tensor y = std::get<0>(h.sort(1, true)) + std::get<0>(h.topk(1, 1)) + std::get<0>(h.max(1, true)) +
                 h.amin(1, true) + std::get<0>(h.kthvalue(3, 1, true)) + std::get<0>(h.median(1, true));
      y = y + h.gather(1, std::get<1>(h.sort(1))) * h.argmax(1, true).to(at::kFloat);
      return F::cross_entropy(n.b(y), batch["target"]);
    };
  });

  // products
  add("EinsumAndBmm", [](Model& m) -> Loss {
    const Tensor w = m.parameter("w", {4, 4, 5});
    const Tensor v = m.parameter("v", {8, 4, 4});
    return [w, v](const Batch& batch) mutable -> Tensor {
      const Tensor x = batch["x"].view({8, 4, 4});
      const Tensor y = torch::einsum("bij,jkc->bikc", {x, w}).sum(1) + torch::einsum("bii,ikc->bkc", {x, w});
      const Tensor z = torch::bmm(v, x) + torch::baddbmm(x, v, v.transpose(1, 2)) + torch::matmul(v, v[0]);
      return F::cross_entropy(y.sum(1) + z.sum({1, 2}).unsqueeze(1), batch["target"]) +
             torch::tensordot(z, w, {1, 2}, {0, 1}).square().mean() + torch::addmv(v[0][0], v[1], v[2][0]).dot(v[3][0]);
    };
  });
  add("Linalg", [](Model& m) -> Loss {
    const Tensor w = m.parameter("w", {8, 8});
    Base n(m);
    return [w, n](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]);
      const Tensor spd = h.t().matmul(h) + torch::eye(8) * 3 + w.matmul(w.t());
      const Tensor factor = at::linalg_cholesky(spd);
      return at::linalg_solve(spd, h).square().mean() + factor.diagonal().log().sum() + at::linalg_inv(spd).sum() +
             at::logdet(spd) + at::linalg_norm(w) + n.b(h).norm(3) + at::linalg_matrix_exp(w * 0.1).mean();
    };
  });
  add("Spectrum", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      return at::fft_rfft(n.a(batch["x"])).abs().mean() + n.b(n.a(batch["x"])).square().mean();
    };
  });
  add(
      "LazyConjugate",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          const Tensor y = at::fft_rfft(n.b(n.a(batch["x"])));
          return at::real(y * y.conj()).mean();
        };
      },
      vectors);
  add(
      "CumulativeProduct",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor { return n.b(n.a(batch["x"])).cumprod(1).square().mean(); };
      },
      vectors, 1, "_local_scalar_dense");
  add(
      "InputChangedInPlace",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          batch["x"].mul_(0.5);
          return F::cross_entropy(n.b(n.a(batch["x"])), batch["target"]);
        };
      },
      vectors, 1, "the batch tensor 'x'");

  add("MasksOfFixedShape", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor h = n.a(batch["x"]) * 1;
      const Tensor mask = batch["x"].narrow(1, 0, 8) > 0.5;
      h.index_put_({mask}, torch::tensor(0.25F));
      h = h.masked_scatter(mask.logical_not(), h.detach().flip(0)) +
          torch::bucketize(h.detach(), torch::linspace(-1, 1, 5)).to(at::kFloat);
      h = h + torch::histc(h.detach(), 8, -2, 2) * 0.01;
      return F::cross_entropy(n.b(h), batch["target"]) + torch::cdist(h, h.flip(0)).mean() +
             torch::kron(h[0], h[1]).mean() + torch::trapezoid(h, -1).mean() + torch::renorm(h, 2, 0, 1.0).mean();
    };
  });
  add("FilledPieceByPiece", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor mask = torch::empty({8, 8});
      for (int64_t i = 0; i < 8; ++i) mask[i].fill_(0.5 + 0.1 * static_cast<double>(i));
      Tensor rows = torch::empty({8, 16});
      rows.narrow(0, 0, 4).copy_(batch["x"].narrow(0, 4, 4));
      rows.narrow(0, 4, 4).copy_(batch["x"].narrow(0, 0, 4));
      Tensor counts = torch::zeros({8, 8});
      for (int64_t i = 0; i < 3; ++i) counts += mask;
      return F::cross_entropy(n.b(n.a(rows) * mask + counts), batch["target"]);
    };
  });

  add("ComplexNumbers", [](Model& m) -> Loss {
    const Tensor w = m.parameter("w", {4, 8, 2});
    Base n(m);
    return [n, w](const Batch& batch) mutable -> Tensor {
      const Tensor z = torch::view_as_complex(n.a(batch["x"]).view({8, 4, 2}));
      return torch::view_as_real(torch::complex(torch::real(z), torch::imag(z))).square().mean() +
             n.b(n.a(batch["x"])).mean() + w.square().sum();
    };
  });
}

}  // namespace duet::testing
