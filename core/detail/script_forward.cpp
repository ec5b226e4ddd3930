#include "core/detail/script_forward.h"
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/passes/constant_pooling.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/peephole.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/script_random.h"
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/zip_archive.h"

namespace duet {

namespace {

using torch::jit::Graph;

// Traced in training mode, a dropout stays one for ever: eval() does not reach it, and metrics are those of a network
// with holes.
void warn_of_random_ops(const Graph& graph, const std::string& who, const std::string& path) {
  const std::vector<std::string> ops = always_random(graph);
  if (ops.empty()) return;
  log_warning("[" + who + "] '" + path + "' draws random numbers in evaluation too: " + join_first(ops) +
              "; call eval() before torch.jit.trace, or keep train() and eval() apart with torch.jit.script");
}

// As LibTorch prepares a graph before it watches any call.
std::shared_ptr<Graph> prepare(const torch::jit::Module& module, const std::string& who, const std::string& path) {
  std::shared_ptr<Graph> graph = torch::jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  torch::jit::Inline(*graph);
  torch::jit::PeepholeOptimize(graph, /*disable_shape_peepholes=*/true);
  torch::jit::ConstantPropagationImmutableTypes(graph);
  warn_of_random_ops(*graph, who, path);
  torch::jit::Autocast(graph);
  torch::jit::ConstantPooling(graph);
  return graph;
}

}  // namespace

torch::jit::Module load_script(const std::string& path, const std::string& who) {
  const std::string place = "[" + who + "] ";
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError(place + "there is no TorchScript file '" + path +
                      "'; write one with torch.jit.save, or mend the path");
  }
  const auto refuse = [&](const std::string& reason, const std::string& way_out) {
    throw ConfigError(place + "'" + path + "' is not a TorchScript archive that can be loaded (" + reason + "); " +
                      way_out);
  };
  try {
    zip_archive::verify_archive(path);  // LibTorch looks at neither sizes nor checksums
  } catch (const MalformedFile& error) {
    refuse(one_line(error.what), error.way_out == kFileMemoryWayOut ? error.way_out : "write it with torch.jit.save");
  } catch (const file_io::IoError& error) {
    refuse(error.what(), "check the path");
  }
  std::optional<torch::jit::Module> module;
  if (const auto error = caught([&] { module = torch::jit::load(path); })) {
    const std::string text = text_of(error);
    refuse(text.substr(0, std::min(text.find('\n'), text.find(". This is an internal"))),
           "write it with torch.jit.save");
  }
  if (!module->find_method("forward")) {
    throw ConfigError(place + "the module in '" + path + "' has no forward(); script one that has");
  }
  return *module;
}

ScriptForward::ScriptForward(const torch::jit::Module& module, std::string who, std::string path)
    : module_(module), who_(std::move(who)), path_(std::move(path)), code_(prepare(module, who_, path_), "forward") {}

namespace {

std::string trimmed(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(' ') - begin + 1);
}

// "mat1 and mat2 shapes cannot be multiplied (5x7 and 4x3), at net.py line 6: y = self.fc(x)" out of what TorchScript's
// interpreter says: a line 'File "net.py", line 6, in forward' for each call, its code around a marked line, and the
// error last. PyTorch's own files help nobody.
std::string script_error(const std::string& text) {
  if (text.find("Traceback of TorchScript") == std::string::npos) return text.substr(0, text.find('\n'));
  std::string place, code, before, last;
  bool wanted = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); before = line) {
    if (line.starts_with("Exception raised from")) break;
    const std::size_t number = line.find("\", line ");
    if (line.starts_with("  File \"") && number != std::string::npos) {
      wanted = line.find("/torch/") == std::string::npos;
      if (wanted)
        place = line.substr(8, number - 8) + " line " + line.substr(number + 8, line.find(", in") - number - 8);
    } else if (wanted && line.find("<--- HERE") != std::string::npos) {
      code = ": " + trimmed(before);
    }
    if (!line.empty() && line.front() != ' ') last = line;
  }
  if (last.starts_with("RuntimeError: ")) last.erase(0, 14);
  return last + (place.empty() ? "" : ", at " + place + code);
}

}  // namespace

at::Tensor ScriptForward::operator()(std::vector<c10::IValue> inputs) const {
  c10::IValue output;
  if (const auto error = caught([&] { output = run(std::move(inputs)); })) {
    throw StepError("[" + who_ + "] forward() of '" + path_ + "' failed: " + script_error(text_of(error)));
  }
  if (output.isTuple() && !output.toTupleRef().elements().empty())
    output = c10::IValue(output.toTupleRef().elements()[0]);
  if (!output.isTensor()) {
    throw ConfigError("[" + who_ + "] forward() of '" + path_ + "' returned " + output.tagKind() +
                      ", expected a tensor (or a tuple that begins with one)");
  }
  return output.toTensor();
}

c10::IValue ScriptForward::run(std::vector<c10::IValue> inputs) const {
  const torch::jit::GraphOptimizerEnabledGuard no_rewrites(false);  // of what could not be inlined
  torch::jit::Stack stack = {module_._ivalue()};
  for (c10::IValue& input : inputs) stack.push_back(std::move(input));
  module_.get_method("forward").function().getSchema().checkAndNormalizeInputs(stack, {});
  torch::jit::InterpreterState(code_, [](const std::function<void()>& work) { work(); }).run(stack);
  return stack.front();
}

}  // namespace duet
