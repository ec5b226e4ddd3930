#pragma once

#include <string>
#include <utility>
#include <vector>

namespace duet {

// One run of a sweep: what it sets, "lr=0.1" by the last part of a key where that tells keys apart.
struct SweepPoint {
  std::string name;                    // "lr=0.1,batch_size=32": its folder
  std::vector<std::string> overrides;  // key=value, those that are the same in all runs too
};

// Every combination of the values in `assignments`, where key=a,b,c stands for three; commas in brackets, braces and
// quotes belong to a value. The last key changes fastest. Throws ConfigError if none has several values, or a key is
// there twice.
std::vector<SweepPoint> sweep_points(const std::vector<std::string>& assignments);

}  // namespace duet
