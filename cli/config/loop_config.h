#pragma once

#include <cstdint>
#include <string>
#include "cli/config/config.h"
#include "core/trainer.h"
#include "data/data_source.h"

namespace duet {

// A limit on the micro-batches of an epoch or a pass as a config writes it: a count, or a share of them.
struct BatchLimit {
  ConfigNode node;  // the map with the key
  std::string key;
  int64_t count = 0;  // 0: no count
  double share = 0;   // 0: no share
  int64_t most = 0;   // what either comes to is cut to this; 0: it is not

  // As a count, cut to `most`; 0: no limit. Throws ConfigError for a share of a number that is not known, or if it is
  // not one batch.
  int64_t batches_of(const DataSource& data) const;

 private:
  int64_t as_written(const DataSource& data) const;
};

struct BatchLimits {
  BatchLimit train, val, test, predict;
};

// `trainer`, but for the device and the optimizer.
struct LoopConfig {
  LoopOptions loop;  // without the limits below
  BatchLimits limits;
  int64_t dry_run = 0;  // steps of a run that only tries everything out; 0: a real run
};

LoopConfig read_loop(const ConfigNode& node);

}  // namespace duet
