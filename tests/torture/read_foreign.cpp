#include <cstdio>
#include <iostream>
#include <string>
#include <ATen/Functions.h>
#include <sys/resource.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "core/script_task.h"
#include "io/file_io.h"
#include "io/png.h"
#include "io/pt_file.h"
#include "io/safetensors.h"
#include "tests/fuzz/foreign_readers.h"

namespace {

using namespace duet;

std::string read_checkpoint(const std::string& folder) {
  const StateDict state = CheckpointStore::load(folder);
  std::string text = weights_hash(state);
  for (const auto& [name, value] : state.values()) text += ";" + name + "=" + std::to_string(value.index());
  return text;
}

// The weights of a program: loading runs it.
std::string read_torchscript(const std::string& path) {
  const auto task = make_script_task({.path = path});
  std::string text;
  for (const NamedTensors& tensors : {task->named_parameters(), task->named_buffers()}) {
    for (const auto& [name, tensor] : tensors) text += name + "=" + xxh3_hex(tensor.data_ptr(), tensor.nbytes()) + ";";
  }
  return text;
}

std::string read(const std::string& kind, const std::string& path) {
  if (kind == "checkpoint") return read_checkpoint(path);
  return kind == "torchscript" ? read_torchscript(path) : foreign_reader(kind).read(path);
}

// Files of every kind that only we can write.
void write_samples(const std::string& folder) {
  StateDict state;
  state.set("model.weight", at::arange(600, at::kFloat).view({20, 30}));
  state.set("model.bias", at::arange(7, at::kHalf));
  state.set("optimizer.exp_avg", at::arange(5, at::kDouble));
  state.set("trainer.step", int64_t{7});
  state.set("trainer.note", std::string("a text"));
  CheckpointStore(folder).save(7, state);
  write_pt(folder + "/ours.pt", state.part("model"));
  const NamedTensors tensors(state.tensors().begin(), state.tensors().end());
  write_safetensors(folder + "/ours.safetensors", tensors, {{"format", "pt"}});
  write_png(folder + "/picture.png", at::arange(3 * 24 * 32).remainder(251).view({24, 32, 3}).to(at::kByte));
}

std::string answer_to(const std::string& kind, const std::string& path) try {
  if (kind == "samples") return write_samples(path), "written";
  if (kind.starts_with("body_of_")) {
    const ForeignReader& reader = foreign_reader(kind.substr(8));
    file_io::replace_file(path, reader.wrap(file_io::read_text(path, uint64_t{1} << 30)));
    return answer_to(reader.kind, path);
  }
  const std::string text = read(kind, path);
  return "loaded " + xxh3_hex(text.data(), text.size());
} catch (const Error& error) {
  return "refused " + one_line(error.what());
}

}  // namespace

// Answers lines "KIND PATH" with "KIB loaded HASH" or "KIB refused MESSAGE": the most memory that this process has
// taken so far, and what the file held. Anything else is a fault, which whoever asks sees.
int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t space = line.find(' ');
    const std::string answer = answer_to(line.substr(0, space), line.substr(space + 1));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::cout << usage.ru_maxrss << " " << answer << std::endl;
  }
}
