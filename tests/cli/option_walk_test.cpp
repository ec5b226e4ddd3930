#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <gtest/gtest.h>
#include <png.h>
#include <torch/script.h>
#include <torch/torch.h>
#include "base/error.h"
#include "cli/catalog.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "hooks/default_hooks.h"
#include "hooks/logger_hook.h"
#include "io/png.h"
#include "io/safetensors.h"
#include "tests/cli/option_observations.h"
#include "tests/support/idx_file.h"
#include "tests/support/npy_bytes.h"
#include "tests/support/scoped_variable.h"

// Every key of a config, those of all registered types included, changes what can be observed or is refused by its
// name. The catalog says which keys there are, option_proofs.inc with which value each shows that it acts.

namespace duet::option_walk {
namespace {

constexpr const char* kBase = R"(
work_dir: out/run
device: cpu
model: {type: Probe}
data:
  train: {type: Toy, batch_size: 3}
  val: {type: Toy, batch_size: 3}
  test: {type: Toy, batch_size: 3}
  predict: {type: Toy, batch_size: 3}
trainer: {max_steps: 7}
optim_wrapper: {optimizer: {lr: 0.05}}
evaluator: [{type: Accuracy}]
default_hooks: {runtime_info: null, nan_guard: null, timer: null, sampler_seed: null, visualization: null,
                logger: {interval: 1, sinks: [Memory]}, param_scheduler: null, checkpoint: null}
graph: {check: off, verify_interval: 0}
)";

// Files that the proofs read.

void write_picture(const std::string& name, int64_t shift) {
  const std::string file = scratch() / name;
  fs::create_directories(fs::path(file).parent_path());
  write_png(file, mixed({6, 6, 3}, shift).add(1).mul(60).to(at::kByte));
}

// A grey picture of 6 x 6 pixels of the classes 0 and 7.
void write_mask(const std::string& name, int period) {
  std::array<uint8_t, 36> levels{};
  for (std::size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<int>(i) % period == 0 ? 0 : 7;
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = image.height = 6;
  image.format = PNG_FORMAT_GRAY;
  ASSERT_TRUE(png_image_write_to_file(&image, (scratch() / name).c_str(), 0, levels.data(), 6, nullptr));
}

void write_clothes(const std::string& folder, int64_t shift) {
  fs::create_directories(scratch() / folder);
  for (const char* split : {"train", "t10k"}) {
    const std::string start = scratch() / (folder + "/" + split);
    const at::Tensor images = mixed({4, 28, 28}, shift++).add(1).mul(100).to(at::kByte);
    const at::Tensor labels = at::arange(4).add(shift / 2).remainder(4).to(at::kByte);
    write_gz(start + "-images-idx3-ubyte.gz", idx_bytes(8, {4, 28, 28}, tensor_bytes(images)));
    write_gz(start + "-labels-idx1-ubyte.gz", idx_bytes(8, {4}, tensor_bytes(labels)));
  }
}

void write_folders() {
  for (const char* name : {"a/0", "a/1", "b/2", "b/3", "b/4"}) {
    const std::string file = std::string(name) + ".png";
    write_picture("folder/" + file, name[2]);
    write_picture("other_folder/" + file, name[2] + 5);
  }
  for (const auto& [folder, period] : {std::pair("masks", 3), {"other_masks", 5}}) {
    fs::create_directories(scratch() / folder);
    for (const char* file : {"/0.png", "/1.png"}) write_mask(folder + std::string(file), period);
  }
  scratch().write("list.csv", "image,target\na/0.png,a\nb/2.png,b\n");
  scratch().write("numbers.csv", "image,target\na/0.png,0\nb/2.png,1\n");
}

void write_weights_of_probe() {
  const NamedTensors weights = items_of(ProbeNet(ConfigNode()).named_parameters());
  NamedTensors other, part, both;
  for (const auto& [name, tensor] : weights) {
    other.emplace_back(name, tensor.detach().mul(0.5));
    if (!name.starts_with("head")) part.emplace_back(name, tensor.detach());
    both.emplace_back("net." + name, tensor.detach().mul(0.25));
  }
  both.insert(both.end(), part.begin(), part.end());
  const NamedTensors rows = {{"image", mixed({4, 2})}}, other_rows = {{"image", mixed({4, 2}, 1)}};
  for (const auto& [file, tensors] : {std::pair("model", &weights),
                                      {"other", &other},
                                      {"part", &part},
                                      {"both", &both},
                                      {"rows", &rows},
                                      {"other_rows", &other_rows}})
    write_safetensors(scratch() / (std::string(file) + ".safetensors"), *tensors);
}

void write_modules() {
  for (const char* name : {"module", "other"}) {
    torch::jit::Module module(name);
    module.register_parameter("weight", mixed({4, 3}, name[0]).requires_grad_(true), false);
    module.define("def forward(self, input):\n  return torch.relu(torch.matmul(input, self.weight))\n");
    module.save(scratch() / (std::string(name) + ".pt"));
  }
  for (const std::string name : {"net.pt2", "other_net.pt2"}) {
    const auto tests = std::filesystem::path(__FILE__).parent_path().parent_path();
    std::filesystem::copy_file(tests / "io/pt2_files" / name, scratch() / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
}

void write_files() {
  ::testing::internal::CaptureStderr();
  ConfigNode root = ConfigNode::parse_text(kBase, "walk.yaml");
  for (const char* word : {"custom_hooks=[{type: EMAHook}]", "default_hooks.checkpoint={}"}) root.override_with(word);
  root.override_with("work_dir=" + scratch() / "earlier");
  tell_run(root);
  ::testing::internal::GetCapturedStderr();
  write_clothes("clothes", 0);
  write_clothes("more_clothes", 8);
  write_folders();
  write_weights_of_probe();
  write_modules();
  scratch().write("table.csv",
                  "a,c,zip,w,y\n1,red,10,1,0\n2,blue,11,2,1\n5,red,10,1,2\n7,green,12,3,0\n2,red,10,1,1\n");
  scratch().write("more.csv", "a,c,zip,w,y\n1,red,10,1,0\n9,blue,11,2,1\n5,green,10,1,2\n7,green,12,3,0\n");
  scratch().write("other.csv", "a,c,zip,w,y\n3,red,10,1,0\n4,red,11,2,1\n6,red,10,1,2\n");
  scratch().write("two.csv", "a;b,y\n1;2,0\n3;4,1\n1;2,1\n");
  for (const auto& [name, first] : {std::pair("x.npy", 1.0F), {"y.npy", 2.0F}})
    scratch().write(name, testing::npy_bytes(testing::npy_entries("<f4", "2,"), testing::bytes_of<float>({first, 3})));
}

// Sections "[name < another] place of the map in a config | word ...", the words of the other one first, and under
// each what shows that its keys act: "key=value | word ...", several in a line two spaces apart. A word is
//   key=value   set with and without the key; /key=value: from the root of the config; $: the folder of files
//   @run        what is observed, one of observations()
//   !text       in the error that refuses the value
//   %reason     why nothing can change
//   ^file: text the test that shows it where one process on a CPU cannot
// Those of "kind/*" belong to all types of a kind that have such a key.
constexpr const char* kProofs =
#include "tests/cli/option_proofs.inc"
    ;

struct Proof {
  std::string section, setting;  // where it stands, and "key=value"
  Words words{};
};

struct Section {
  std::string place;
  Words words{};
  std::map<std::string, Proof> proofs{};  // by key
};
using Sections = std::map<std::string, Section>;

Words split(const std::string& text, const std::string& separator) {
  Words parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t first = part.find_first_not_of(' '), last = part.find_last_not_of(' ');
    if (first != std::string::npos) parts.push_back(part.substr(first, last - first + 1));
    at = end + separator.size();
  }
  return parts;
}

void read_header(const std::string& line, Sections& sections, std::string& name) {
  const std::size_t end = line.find(']');
  const Words names = split(line.substr(1, end - 1), "<");
  name = names.front();
  Section section = names.size() > 1 ? sections.at(names[1]) : Section();
  const std::size_t slash = name.find('/');
  const bool is_type = slash != std::string::npos && !name.ends_with("/*") && !name.starts_with("constructor");
  if (is_type) section.words.push_back("type=" + name.substr(slash + 1));
  for (const std::string& word : split(line.substr(end + 1), " | ")) {
    const bool is_place = word.find_first_of("=@") == std::string::npos;
    is_place ? section.place = word : section.words.emplace_back(word);
  }
  sections[name] = std::move(section);
}

Sections read_proofs() {
  Sections sections;
  std::string name;
  std::istringstream lines(kProofs);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) {
      read_header(line, sections, name);
      continue;
    }
    for (const std::string& text : split(line, "  ")) {
      const Words words = split(text, " | ");
      sections[name].proofs[words[0].substr(0, words[0].find('='))] = {
          name, words[0], {words.begin() + 1, words.end()}};
    }
  }
  return sections;
}

// Those of a type without a section of its own are its kind's; a default hook's are those of its type, and the type.
Section section_of(const std::string& name, const Sections& sections) {
  const std::string front = "default_hooks.";
  if (name.starts_with(front)) {
    Section section = section_of("hook/" + default_hook_type(name.substr(front.size())), sections);
    section.place = name;
    section.proofs["type"] = sections.at("default_hooks").proofs.at("type");
    return section;
  }
  const auto found = sections.find(name);
  if (found != sections.end()) return found->second;
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos || !sections.contains(name.substr(0, slash) + "/*")) return {};
  Section section = sections.at(name.substr(0, slash) + "/*");
  section.words.push_back("type=" + name.substr(slash + 1));
  return section;
}

// A proof in its section: what is said in either, the proof's last.
struct Trial {
  Words words{};        // of the config without the key, from its root
  std::string setting;  // likewise
  std::string observation = "run", refusal{}, same{}, elsewhere{};
  bool is_observed = true;
};

Trial trial_of(const Section& section, const Proof& proof) {
  const std::string front = section.place.empty() ? "" : section.place + ".";
  Trial trial{.words = {"work_dir=$/out/run"}, .setting = front + proof.setting};
  if (front.ends_with(".0.")) trial.words.push_back(section.place.substr(0, section.place.size() - 2) + "=[{}]");
  Words all = section.words;
  all.insert(all.end(), proof.words.begin(), proof.words.end());
  for (const std::string& word : all) {
    const std::string rest = word.substr(1);
    switch (word[0]) {
      case '@': trial.observation = rest, trial.is_observed = true; break;
      case '!': trial.refusal = rest; break;
      case '%': trial.same = rest; break;
      case '^': trial.elsewhere = rest, trial.is_observed = false; break;
      case '/': trial.words.push_back(rest); break;
      default: trial.words.push_back(front + word);
    }
  }
  return trial;
}

struct Seen {
  std::string told, error;
  bool operator==(const Seen&) const = default;
};

Seen seen_of(const std::string& observation, const Words& words) {
  const std::string out = scratch() / "out";
  fs::remove_all(out);
  fs::create_directories(out);
  told().clear();
  records()->clear();
  Seen seen;
  ::testing::internal::CaptureStderr();
  try {
    ConfigNode root = ConfigNode::parse_text(kBase, "walk.yaml");
    for (std::string word : words) {
      for (std::size_t at = 0; (at = word.find('$', at)) != std::string::npos;)
        word.replace(at, 1, scratch().path().string());
      root.override_with(word);
    }
    observations().at(observation)(root);
  } catch (const NonFiniteError& error) {  // how a run may end
    tell(error.what());
  } catch (const Error& error) {
    seen.error = error.what();
  }
  tell_log(::testing::internal::GetCapturedStderr(), observation == "log");
  tell_records();
  tell_files(out);
  seen.told = told();
  return seen;
}

// Looked at twice, since what differs by chance would prove anything.
const Seen& seen_without(const Trial& trial) {
  static std::map<std::pair<std::string, Words>, Seen> all;
  const auto [found, is_new] = all.try_emplace({trial.observation, trial.words});
  if (!is_new) return found->second;
  found->second = seen_of(trial.observation, trial.words);
  EXPECT_TRUE(found->second == seen_of(trial.observation, trial.words)) << "two runs of the same config differ";
  return found->second;
}

void check(const Trial& trial) {
  if (!trial.elsewhere.empty()) {
    const Words parts = split(trial.elsewhere, ": ");
    const std::string file = (fs::path(__FILE__).parent_path().parent_path() / parts[0]).string();
    EXPECT_NE(read_bytes(file).find(parts[1]), std::string::npos) << trial.elsewhere;
  }
  if (!trial.is_observed) return;
  const Seen& without = seen_without(trial);
  Words words = trial.words;
  words.push_back(trial.setting);
  const Seen with = seen_of(trial.observation, words);
  if (!without.error.empty() || with.error.empty() != trial.refusal.empty()) {
    ADD_FAILURE() << "without it: " << without.error << "\nwith it: " << with.error;
  } else if (!trial.refusal.empty()) {
    EXPECT_NE(with.error.find(trial.refusal), std::string::npos) << with.error;
  } else if (trial.same.empty()) {
    EXPECT_FALSE(with == without) << "it changes nothing";
  } else {
    EXPECT_TRUE(with == without) << "it changes something: " << trial.same;
  }
}

std::set<std::string> names_of(const OptionFields& fields) {
  std::set<std::string> names;
  for (const OptionField& field : fields) names.insert(field.name);
  return names;
}

// By section. Keys of lists, of maps with names of the user's own, and those that are always refused are not in the
// catalog.
std::map<std::string, std::set<std::string>> known_keys() {
  std::map<std::string, std::set<std::string>> keys = {{"statistic", names_of(LogStatistic::fields())},
                                                       {"sink", names_of(LogSinkOptions::fields())},
                                                       {"evaluator", {"prefix"}},
                                                       {"custom_key", {"lr_mult", "decay_mult", "eps", "betas"}}};
  for (const ConfigKey& key : keys_of_config()) {
    const std::size_t dot = key.path.rfind('.');
    keys[dot == std::string::npos ? "config" : key.path.substr(0, dot)].insert(key.path.substr(dot + 1));
  }
  for (const char* part : {"data.val", "data.test", "data.predict"})
    keys[part].insert(keys_of_drawing().begin(), keys_of_drawing().end());
  const Words own_schedules = registered("schedule");
  for (const TypeKind& kind : type_kinds()) {
    for (const std::string& type : kind.types) {
      const bool is_own = std::find(own_schedules.begin(), own_schedules.end(), type) != own_schedules.end();
      if (kind.name == "schedule" ? is_own : !is_built_in(kind.name, type)) continue;
      for (const ConfigKey& key : keys_of_type(kind, type)) keys[kind.name + "/" + type].insert(key.path);
    }
  }
  return keys;
}

TEST(OptionWalk, EveryKeyActsOrIsRefused) {
  const ScopedVariable display("DISPLAY", ""), wayland("WAYLAND_DISPLAY", "");  // nothing shall pop up
  register_own_types();
  write_files();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // on tensors this small others only wait
  const Sections sections = read_proofs();
  std::set<std::pair<std::string, std::string>> used;
  for (const auto& [name, keys] : known_keys()) {
    const Section section = section_of(name, sections);
    for (const std::string& key : keys) {
      const auto proof = section.proofs.find(key);
      if (proof == section.proofs.end()) {
        ADD_FAILURE() << "nothing shows that the key " << key << " of '" << name << "' acts";
        continue;
      }
      used.insert({proof->second.section, key});
      const Trial trial = trial_of(section, proof->second);
      SCOPED_TRACE(name + ": " + trial.setting);
      check(trial);
    }
  }
  for (const auto& [name, section] : sections) {
    for (const auto& [key, proof] : section.proofs)
      EXPECT_TRUE(proof.section != name || used.contains({name, key})) << "there is no key " << key << " of " << name;
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace duet::option_walk
