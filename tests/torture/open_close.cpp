#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include "hooks/default_hooks.h"
#include "tests/support/loop_runs.h"

namespace duet {
namespace {

void open_and_close(const std::string& mode, const std::string& work_dir) {
  const auto trainer = testing::trainer_for(mode, {.max_steps = 4}, "AdamW", work_dir);
  register_default_hooks(*trainer);
  const auto data = testing::loader(8);
  trainer->train(*data);
}

}  // namespace
}  // namespace duet

// usage: duet_open_close COUNT FOLDER: makes and ends COUNT trainers of each mode, with loader, hooks and checkpoints.
// It says so ten times, and waits for an answer: whoever asked looks at memory, files and threads then.
int main(int count, char** words) {
  if (count != 3) return 2;
  const int trainers = std::atoi(words[1]);
  for (int i = 1; i <= trainers; ++i) {
    for (const std::string mode : {"eager", "graph"}) {
      duet::open_and_close(mode, std::string(words[2]) + "/" + mode);
      std::filesystem::remove_all(std::string(words[2]) + "/" + mode);
    }
    if (i % (trainers / 10) != 0) continue;
    std::cout << i << std::endl;
    std::string answer;
    std::getline(std::cin, answer);
  }
}
