#include "cli/run_cli.h"
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/ranks.h"
#include "cli/report.h"

namespace duet {

RunConfig load_run_config(const Arguments& arguments) {
  ConfigNode root = ConfigNode::parse_file(arguments.config);
  for (const std::string& assignment : arguments.overrides) root.override_with(assignment);
  if (!arguments.mode.empty()) root.override_with("mode=" + arguments.mode, "--mode");
  if (!arguments.load_from.empty()) override_load_from(root, arguments.load_from);
  if (!arguments.dry_run.empty()) root.override_with("trainer.fast_dev_run=" + arguments.dry_run, "--dry-run");
  if (arguments.auto_scale_lr) root.override_with("auto_scale_lr.enable=true", "--auto-scale-lr");
  const int64_t world_size = read_launch(arguments.launch).world_size;
  return parse_run_config(root, std::filesystem::path(arguments.config).stem().string(), world_size);
}

namespace {

// The parser, and what it has read.
struct Program {
  CLI::App app{"duet trains a LibTorch model op by op (eager) or as one captured graph, with the same result.", "duet"};
  Arguments arguments;
  int (*run)(const Arguments&) = nullptr;  // the command
};

// What a launcher's variables say; for processes that are started by hand.
void add_launch(CLI::App* command, LaunchFlags& flags) {
  const auto add = [&](const char* name, auto& target, const char* text, const char* type) {
    command->add_option(name, target, text)
        ->option_text(type)
        ->group("Processes (by default as torchrun, srun or mpirun say)");
  };
  add("--rank", flags.rank, "this process among all of them, from 0", "N");
  add("--world-size", flags.world_size, "how many there are", "N");
  add("--local-rank", flags.local_rank, "this process among those of its machine: its GPU", "N");
  add("--master-addr", flags.master_address, "the machine of rank 0", "HOST");
  add("--master-port", flags.master_port, "a free port there", "PORT");
}

// A command with the words that it takes, those that several take by name.
class Command {
 public:
  Command(Program& program, const std::string& name, const std::string& text, int (*run)(const Arguments&))
      : arguments_(program.arguments), app_(program.app.add_subcommand(name, text)) {
    app_->callback([&program, run] { program.run = run; });
  }

  const Command& config() const {
    word("CONFIG", arguments_.config, "YAML file");
    app_->add_option(
        "OVERRIDES", arguments_.overrides,
        "key=value: sets a value of the config, such as optim_wrapper.optimizer.lr=0.01; ~key deletes one; duet help "
        "lists all keys");
    return json("write the results to this file");
  }
  const Command& json(const char* text) const { return option("--json", arguments_.json, text, "FILE"); }
  const Command& mode() const {
    return choice("--mode", arguments_.mode, "eager or graph; wins over the config", {"eager", "graph"});
  }
  const Command& checkpoint() const {
    return option("--checkpoint", arguments_.checkpoint,
                  "best, latest, a folder (checkpoint or work_dir), or a file of weights; default: best, else latest",
                  "PATH");
  }
  const Command& ranks() const { return add_launch(app_, arguments_.launch), *this; }

  template <class Target>
  const Command& word(const char* name, Target& target, const char* text, int count = 0) const {
    CLI::Option* added = app_->add_option(name, target, text)->required();
    if (count > 0) added->expected(count);
    return *this;
  }
  template <class Target>
  const Command& option(const char* name, Target& target, const char* text, const char* value) const {
    return app_->add_option(name, target, text)->option_text(value), *this;
  }
  template <class Number>
  const Command& number(const char* name, Number& target, const char* text, const CLI::Range& range) const {
    return app_->add_option(name, target, text)->check(range)->option_text("N"), *this;
  }
  const Command& choice(const char* name, std::string& target, const char* text,
                        const std::vector<std::string>& choices) const {
    std::string value;
    for (const std::string& each : choices) value += (value.empty() ? "" : "|") + each;
    app_->add_option(name, target, text)->check(CLI::IsMember(choices))->option_text(value);
    return *this;
  }
  const Command& flag(const char* name, bool& target, const char* text) const {
    return app_->add_flag(name, target, text), *this;
  }
  CLI::App* app() const { return app_; }

 private:
  Arguments& arguments_;
  CLI::App* app_;
};

constexpr int64_t kMany = int64_t{1} << 31;

void add_runs(Program& program) {
  Arguments& to = program.arguments;
  const Command train(program, "train", "Train the model of a config", train_command);
  train.config()
      .mode()
      .option("--resume", to.resume,
              "none (default), auto (newest good checkpoint; default when a launcher starts the run anew), a "
              "checkpoint, or a work_dir",
              "auto|none|PATH")
      .choice("--hyper-parameters", to.hyper_parameters,
              "on a resume, whose learning rate, weight decay and other numbers of the optimizer hold where they "
              "differ: the checkpoint's (default) or the config's",
              {"checkpoint", "config"})
      .option("--load-from", to.load_from,
              "start from the weights of a checkpoint, safetensors or .pt file; a resumed checkpoint wins", "PATH")
      .flag("--auto-scale-lr", to.auto_scale_lr, "scale learning rates to the batch size, as auto_scale_lr.enable")
      .ranks();
  train.app()
      ->add_flag("--dry-run{1}", to.dry_run, "try everything out in N steps (default 1); leaves no files")
      ->option_text("[N]")
      ->excludes("--resume");
  Command(program, "eval", "Evaluate a checkpoint on data.test, or data.val", eval_command)
      .config()
      .mode()
      .checkpoint()
      .ranks();
  Command(program, "predict", "Write what a checkpoint predicts on data.predict, data.test or data.val",
          predict_command)
      .config()
      .mode()
      .checkpoint()
      .option("--output", to.output, "folder for the predictions; default: WORK_DIR/predictions", "FOLDER");
  Command(program, "compare", "Train in both modes from one seed: same bits? how much faster?", compare_command)
      .config()
      .number("--steps", to.steps, "steps per mode (default 100)", CLI::Range(int64_t{1}, kMany))
      .flag("--bisect", to.bisect,
            "hash loss, gradients, weights and buffers of every step; name the first step and tensor that differ");
  Command(program, "explain",
          "Show parameter groups, schedules and hooks of a config, and what graph mode captures, without training",
          explain_command)
      .config()
      .mode();
}

void add_further_runs(Program& program) {
  Arguments& to = program.arguments;
  GenerateOptions& text = to.generate;
  Command(program, "generate", "Let a Gpt go on with a text", generate_command)
      .config()
      .mode()
      .checkpoint()
      .option("--prompt", text.prompt, "the text's beginning; default: a new line", "TEXT")
      .number("--length", text.length, "characters to generate (default 200)", CLI::Range(int64_t{1}, kMany))
      .number("--temperature", text.temperature, "below 1 keeps to what is likely; 0: always the likeliest (default 1)",
              CLI::Range(0.0, 1e6))
      .number("--top-k", text.top_k, "only among the N likeliest characters; 0: all (default)",
              CLI::Range(int64_t{0}, kMany))
      .option("--seed", text.seed, "another text for each (default 0)", "N");
  Command(
      program, "sweep",
      "Train with every combination of values (key=a,b,c) and rank the runs; the same call goes on with what is not "
      "done",
      sweep_command)
      .config()
      .mode()
      .number("--jobs", to.jobs, "runs at once (default 1)", CLI::Range(int64_t{1}, int64_t{1024}))
      .flag("--stop-bad", to.stop_bad,
            "stop a run whose best result so far is worse than the median of three or more others at that step");
  const Command find(program, "find", "Find a learning rate, or a batch size, without training", find_command);
  find.app()->add_option("WHAT", to.find, "lr or batch_size")->required()->check(CLI::IsMember({"lr", "batch_size"}));
  find.config()
      .mode()
      .option("--output", to.output, "lr: picture of the curve; default: lr_find.png", "FILE")
      .option("--min-lr", to.lr_finder.min_lr, "lr: of the first step (default 1e-8)", "LR")
      .option("--max-lr", to.lr_finder.max_lr, "lr: of the last step (default 1)", "LR")
      .option("--steps", to.lr_finder.num_training, "lr: in the sweep (default 100)", "N")
      .number("--memory-share", to.memory_share, "batch_size: of the free memory, that may be used (default 0.8)",
              CLI::Range(0.0, 1.0));
  Command(program, "profile", "Show where a step's time and memory go", profile_command)
      .config()
      .mode()
      .number("--steps", to.profile_steps, "that are timed (default 20)", CLI::Range(int64_t{1}, int64_t{1} << 20));
}

// What looks at runs and files that are there, and at the program itself.
void add_tools(Program& program) {
  Arguments& to = program.arguments;
  Command(program, "report", "Show runs as one HTML page: curves, pictures, configs, environment", report_command)
      .word("RUN", to.runs, "folders of runs (work_dir); several are laid over each other")
      .option("--output", to.output, "where the page goes; default: report.html in the first folder", "FILE");
  to.folder = "runs";
  Command(program, "list", "List the runs below a folder, the newest first", list_command)
      .json("write the list to this file")
      .app()
      ->add_option("FOLDER", to.folder, "default: runs");
  Command(program, "diff", "Show in what two runs differ: configs with origins, environment, results", diff_command)
      .word("RUN", to.runs, "two folders of runs", 2)
      .json("write the differences to this file");
  Command(program, "inspect", "Verify a checkpoint and list what it holds", inspect_command)
      .word("CHECKPOINT", to.checkpoint, "folder step-N, or one above it")
      .json("write the list to this file");
  Command(program, "export", "Write the weights of a checkpoint for Python: safetensors, or .pt for torch.load",
          export_command)
      .word("CHECKPOINT", to.checkpoint, "checkpoint, or a file of weights")
      .word("FILE", to.file, "*.safetensors or *.pt; *.pt2: the exported model with these weights")
      .option("--weights", to.weights, "model (default), or the name of an average: ema", "model|ema")
      .option("--model", to.model,
              "file that the model came from, of torch.export or (to *.pt) TorchScript; of a run the config's", "FILE")
      .json("write what was exported to this file");
  Command(program, "doctor", "Show versions, device and threads, and what is missing", doctor_command)
      .json("write it to this file");
  // Listed here; its words are read elsewhere, as most are for others.
  program.app.add_subcommand("launch",
                             "Start N processes that train together: launch -n N train CONFIG ... (torchrun)");
  Command(program, "help", "List the keys of a config, or of a type that it may name", help_command)
      .flag("--markdown", to.markdown, "all keys of all types as Markdown pages")
      .app()
      ->add_option("TOPIC", to.topic,
                   "a key (trainer, data.train, lr), a type (AdamW), its key (AdamW.lr) or a command (train)");
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// The words after the program's name, last one first as the parser takes them. A number behind --dry-run is joined to
// it: the parser would take whatever stands there, such as the config.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool is_number = !word.empty() && word.find_first_not_of("-0123456789") == std::string::npos;
    if (is_number && !words.empty() && words.back() == "--dry-run") {
      words.back() += "=" + word;
    } else {
      words.push_back(word);
    }
  }
  std::reverse(words.begin(), words.end());
  return words;
}

int report_error(const std::string& text, int code) {
  std::cout.flush();
  // In one piece: other ranks may write at the same moment.
  std::cerr << "error: " + rank_prefix() + escape_control_chars(text) + "\n" << std::flush;
  write_error_file(rank_prefix() + text);
  return code;
}

int run_safely(const std::function<int()>& command) {
  try {
    return command();
  } catch (...) {
    try {
      const Failure failure = failure_of(std::current_exception());
      return report_error(failure.text, failure.exit_code);
    } catch (...) {  // not even for that
      std::fputs("error: there was no memory left\n", stderr);
      return 1;
    }
  }
}

// All but a few commands are for one process.
void check_processes(const std::string& command) {
  for (const char* together : {"train", "eval", "doctor", "help"}) {
    if (command == together) return;
  }
  refuse_ranks(command);
}

int run_call(int argc, char** argv) {
  Program program;
  CLI::App& app = program.app;
  app.set_version_flag("--version", std::string("duet ") + DUET_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 bad config or usage, or a model that cannot take its batch, 3 bad data, 4 no "
      "usable checkpoint, 5 diverged (numbers that are not finite), 6 another process of the run was lost (a restart "
      "goes on from the last checkpoint), 75 stopped by a signal with state saved, 128 + N by signal N with nothing to "
      "save (130: Ctrl-C).");
  add_runs(program);
  add_further_runs(program);
  add_tools(program);
  const std::vector<std::string> commands = commands_of(app);
  const auto is_command = [&](const char* word) { return std::ranges::find(commands, word) != commands.end(); };
  if (argc >= 2 && argv[1][0] != '-' && !is_command(argv[1]))
    throw ConfigError(c10::str("[duet] found no command '", argv[1], "'; ", known_and_nearest(argv[1], commands)));
  if (argc == 3 && std::string(argv[1]) == "help" && is_command(argv[2])) {
    char flag[] = "--help";
    char* words[] = {argv[0], argv[2], flag};
    return run_call(3, words);
  }
  if (argc >= 2 && std::string(argv[1]) == "launch") return launch_command({argv + 2, argv + argc}, argv[0]);
  try {
    app.parse(words_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // --help ends the parser in the same way
  }
  check_processes(app.get_subcommands().front()->get_name());
  if (program.run != train_command && program.run != eval_command) check_writable(program.arguments.json);
  return program.run(program.arguments);
}

// A file that was opened in the place of one that is closed would get what is printed.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1) static_cast<void>(::open("/dev/null", O_RDWR));
  }
}

}  // namespace

int run_cli(int argc, char** argv) {
  open_standard_streams();
  // A file that may become no longer (ulimit -f) is an error that a save reports, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = run_safely([&] { return run_call(argc, argv); });
  if (std::cout.flush() || code != 0) return code;
  return report_error(c10::str("standard output cannot be written (", std::strerror(errno), "); make room"), 1);
}

}  // namespace duet
