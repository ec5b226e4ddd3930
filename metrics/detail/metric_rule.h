#pragma once

#include <string>

namespace duet {

// Whether less of `metric` is better. `rule` decides if it is "greater" or "less"; if it is empty the name does, by its
// last part ("val/mIoU": mIoU) and else by the whole: loss, error, perplexity and the like against accuracy, IoU, F1
// and the like. Throws ConfigError for a name that says neither or both, since a wrong guess would keep the worst
// weights, and for another rule. `who` begins the message.
bool less_is_better(const std::string& who, const std::string& metric, const std::string& rule = "");

}  // namespace duet
