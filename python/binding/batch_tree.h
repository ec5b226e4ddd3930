#pragma once

#include "base/batch.h"
#include "python/binding/py.h"

namespace duet::python {

// A batch as Python has it: a tensor or an array, or dicts, lists, tuples, dataclasses and mappings (Hugging Face's
// BatchEncoding) of such, nested. Tensors are named by their path ("input_ids", "images.left", "0"; "batch" for one
// alone); everything else in it (None, numbers, texts) belongs to the structure, and so to the signature of the step.
// Throws DataError naming the path of what is neither.
Batch to_batch(const py::handle& object);

// The same nesting with the tensors of `batch`; a dict by name where the batch has no structure.
py::object to_python(const Batch& batch);

}  // namespace duet::python
