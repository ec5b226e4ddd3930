#pragma once

#include <cstddef>
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

// Shadow storages stand for memory of a step while its host code runs without its kernels: whoever asks one for its
// address gets an exception instead. One that is filled is a storage like any other.

namespace duet {

c10::intrusive_ptr<c10::StorageImpl> make_shadow(std::size_t bytes, c10::Device device);
bool is_shadow(const c10::StorageImpl& storage);
// Memory that stays, and whose address nobody gets: it does not hold what a step that runs would have written by now.
void lock(c10::StorageImpl& storage);
void unlock(c10::StorageImpl& storage);
bool is_locked(const c10::StorageImpl& storage);
// Frees the memory.
void turn_into_shadow(c10::StorageImpl& storage);
void fill_shadow(c10::StorageImpl& shadow, c10::DataPtr memory);

// Throws GraphError if this LibTorch gives addresses of shadows.
void check_that_shadows_work();
// Whether the exception comes from a shadow's address, also where it was wrapped on its way.
bool is_shadow_access(const std::exception& error);

// The memory of what an op gave, or a copy of it if the op keeps it; `ours`: references to the tensor that are the
// caller's.
c10::DataPtr take_memory(const at::Tensor& result, std::size_t ours = 1);
// A copy of the storage's bytes.
c10::DataPtr copy_memory(const c10::Storage& storage);

}  // namespace duet
