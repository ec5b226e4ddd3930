#pragma once

#include <cstdint>
#include <dlfcn.h>

// What differs between the versions of LibTorch that duet builds with: their headers are asked what they have.

namespace at::impl {
struct NodeCreationHooks;  // where there is one: in ATen/NodeCreationHooks.h
}

namespace duet {

// The newest have no named tensors.
template <class Tensor>
bool has_names(const Tensor& tensor) {
  if constexpr (requires { tensor.has_names(); }) {
    return tensor.has_names();
  } else {
    return false;
  }
}

// The graph of the newest finds a generator when it is drawn from.
template <class Graph, class Generator>
void register_generator(Graph& graph, const Generator& generator) {
  if constexpr (requires { graph.register_generator_state(generator); }) graph.register_generator_state(generator);
}

// Whether Python has, or may once have had, an object for a node of autograd's. Before 2.15 a node forgets it.
template <class Node>
bool may_be_known_to_python(Node& node) {
  if constexpr (requires { node.pyobj_slot(); }) {
    return node.pyobj_slot()->load_pyobj() != nullptr;
  } else {
    static const bool is_in_python = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
    return is_in_python;
  }
}

// Settings that came after LibTorch 2.11; 0 where it has none.
template <class State>
int64_t enforces_layout_of_gradients(const State& state) {
  if constexpr (requires { state.get_grad_layout_enforcement_enabled(); }) {
    return int64_t{state.get_grad_layout_enforcement_enabled()};
  } else {
    return 0;
  }
}

template <class Hooks = at::impl::NodeCreationHooks>
int64_t hooks_on_new_nodes() {
  if constexpr (requires { Hooks::get_tls_state(); }) {
    return static_cast<int64_t>(Hooks::get_tls_state().stack.size());
  } else {
    return 0;
  }
}

template <class Context>
int64_t kernels_compiled_ahead(const Context& context) {
  if constexpr (requires { context.allowNativeAot() + context.maskUnconditionalNativeAot(); }) {
    return int64_t{context.allowNativeAot()} + 2 * int64_t{context.maskUnconditionalNativeAot()};
  } else {
    return 0;
  }
}

template <class Context>
int64_t newer_gpu_kernels(const Context& context) {
  int64_t kernels = 0;
  if constexpr (requires { context.userEnabledFA4SDP(); }) kernels += int64_t{context.userEnabledFA4SDP()};
  if constexpr (requires { context.preferCublasltGroupedGemm(); })
    kernels += 2 * int64_t{context.preferCublasltGroupedGemm()};
  if constexpr (requires { context.cudnnDepthwiseKernel(); })
    kernels += 4 * static_cast<int64_t>(context.cudnnDepthwiseKernel());
  return kernels;
}

}  // namespace duet
