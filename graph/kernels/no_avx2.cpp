#include "graph/kernels/image_kernels.h"

// Another kind of CPU, or a compiler without AVX2: ATen's kernels run.

namespace duet {

ImageKernels image_kernels_avx2() { return {}; }

}  // namespace duet
