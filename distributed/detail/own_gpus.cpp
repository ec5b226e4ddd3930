#include "distributed/detail/own_gpus.h"
#include <cstddef>
#include <map>
#include <c10/util/StringUtil.h>

namespace duet {

std::string find_shared_gpu(const std::vector<GpuOfRank>& of_ranks) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto& [identity, name] = of_ranks[rank];
    const auto [owner, is_new] = owners.emplace(identity, rank);
    if (is_new || identity.empty()) continue;
    return c10::str("ranks ", owner->second, " and ", rank, " both train on ", identity, " (",
                    of_ranks[owner->second].name, " and ", name,
                    "), expected a GPU each; start no more processes than there are GPUs, leave their choice to "
                    "device=cuda and check LOCAL_RANK and CUDA_VISIBLE_DEVICES, or train with device=cpu");
  }
  return {};
}

}  // namespace duet
