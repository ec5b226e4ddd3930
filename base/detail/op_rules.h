#pragma once

#include <string>
#include <vector>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

// What one must know of ops beyond their schemas to record a step or to look into it.

namespace duet {

// "aten::add.Tensor".
std::string full_name(const c10::OperatorHandle& op);

// Whether it may move a generator, and whether it does with these arguments.
bool is_random(const c10::OperatorHandle& op);
bool draws(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether it writes its changed arguments without reading them.
bool overwrites(const c10::OperatorHandle& op);

// Whether it only allocates: empty, empty_like, new_empty_strided, ...
bool is_empty_like(const c10::OperatorHandle& op);

// Whether this result is a workspace that only the op's backward can read; some bytes of it nobody may have written.
bool is_workspace(const c10::OperatorHandle& op, std::size_t result);

// What keeps the tensor from being a place in memory with a shape, in words for the user; null: nothing does.
const char* special_kind(const at::Tensor& tensor);

// Whether its elements are what lies in that place: no lazy conjugate either.
bool is_plain(const at::Tensor& tensor);

// Memory that an empty-like op just gave gets the same bytes every time: what the host writes into it can then be told,
// and what nobody writes is the same everywhere.
void fill_empty(const at::Tensor& tensor);

// Whether the schema says that the op writes into this argument.
bool writes(const c10::Argument& argument);

// The arguments that it changes although its schema does not say so: positions, usually none.
std::vector<std::size_t> hidden_writes(const c10::OperatorHandle& op);

}  // namespace duet
