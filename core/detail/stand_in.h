#pragma once

namespace duet {

// A hook that gives way to one of its name that is added later.
class StandIn {
 public:
  virtual ~StandIn() = default;
};

}  // namespace duet
