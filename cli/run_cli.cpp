#include "cli/run_cli.h"
#include <algorithm>
#include <csignal>
#include <cstdio>
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
#include <fcntl.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/key_hint.h"
#include "cli/ranks.h"
#include "cli/report.h"

namespace duet {

RunConfig load_run_config(const Arguments& arguments) {
  ConfigNode root = ConfigNode::parse_file(arguments.config);
  check_override_keys(arguments.overrides);
  for (const std::string& assignment : arguments.overrides) root.override_with(assignment);
  if (!arguments.mode.empty()) root.override_with("mode=" + arguments.mode, "--mode");
  if (!arguments.load_from.empty()) override_load_from(root, arguments.load_from);
  if (!arguments.dry_run.empty()) root.override_with("trainer.fast_dev_run=" + arguments.dry_run, "--dry-run");
  return parse_run_config(root, std::filesystem::path(arguments.config).stem().string());
}

namespace {

// The parser, and what it has read.
struct Program {
  CLI::App app{"duet trains a LibTorch model op by op (eager) or as one captured graph, with the same result.", "duet"};
  Arguments arguments;
  std::function<int()> chosen;
};

CLI::App* add_command(Program& program, const std::string& name, const std::string& text,
                      int (*command)(const Arguments&)) {
  CLI::App* added = program.app.add_subcommand(name, text);
  added->callback([&program, command] { program.chosen = [&program, command] { return command(program.arguments); }; });
  return added;
}

void add_json(CLI::App* command, Arguments& arguments, const std::string& text) {
  command->add_option("--json", arguments.json, text)->type_name("FILE");
}

void add_config(CLI::App* command, Arguments& arguments) {
  command->add_option("CONFIG", arguments.config, "YAML file")->required();
  command->add_option(
      "key=value", arguments.overrides,
      "config values to set, such as optim_wrapper.optimizer.lr=0.01; ~key deletes one; duet help lists all keys");
  add_json(command, arguments, "write the results to this file");
}

void add_mode(CLI::App* command, Arguments& arguments) {
  command->add_option("--mode", arguments.mode, "eager or graph; wins over the config")
      ->check(CLI::IsMember({"eager", "graph"}))
      ->option_text("eager|graph");
}

void add_checkpoint(CLI::App* command, Arguments& arguments) {
  command
      ->add_option("--checkpoint", arguments.checkpoint,
                   "best, latest, a folder (checkpoint or work_dir), or a file of weights; default: best, else latest")
      ->option_text("PATH");
}

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

void add_train(Program& program) {
  Arguments& arguments = program.arguments;
  CLI::App* train = add_command(program, "train", "Train the model of a config", train_command);
  add_config(train, arguments);
  add_mode(train, arguments);
  train
      ->add_option("--resume", arguments.resume,
                   "none (default), auto (newest good checkpoint; default when a launcher starts the run anew), a "
                   "checkpoint, or a work_dir")
      ->option_text("auto|none|PATH");
  train
      ->add_option("--hyper-parameters", arguments.hyper_parameters,
                   "on a resume, whose learning rate, weight decay and other numbers of the optimizer hold where they "
                   "differ: the checkpoint's (default) or the config's")
      ->check(CLI::IsMember({"checkpoint", "config"}))
      ->option_text("checkpoint|config");
  train
      ->add_option("--load-from", arguments.load_from,
                   "start from the weights of a checkpoint, safetensors or .pt file; a resumed checkpoint wins")
      ->option_text("PATH");
  train->add_flag("--dry-run{1}", arguments.dry_run, "try everything out in N steps (default 1); leaves no files")
      ->option_text("[N]")
      ->excludes("--resume");
  add_launch(train, arguments.launch);
}

void add_other_runs(Program& program) {
  Arguments& arguments = program.arguments;
  CLI::App* eval = add_command(program, "eval", "Evaluate a checkpoint on data.test, or data.val", eval_command);
  add_config(eval, arguments);
  add_mode(eval, arguments);
  add_checkpoint(eval, arguments);
  add_launch(eval, arguments.launch);

  CLI::App* predict = add_command(
      program, "predict", "Write what a checkpoint predicts on data.predict, data.test or data.val", predict_command);
  add_config(predict, arguments);
  add_mode(predict, arguments);
  add_checkpoint(predict, arguments);
  predict->add_option("--output", arguments.output, "folder for the predictions; default: WORK_DIR/predictions")
      ->type_name("FOLDER");

  CLI::App* compare = add_command(program, "compare", "Train in both modes from one seed: same bits? how much faster?",
                                  compare_command);
  add_config(compare, arguments);
  compare->add_option("--steps", arguments.steps, "steps per mode (default 100)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->option_text("N");
  compare->add_flag(
      "--bisect", arguments.bisect,
      "hash loss, gradients, weights and buffers of every step; name the first step and tensor that differ");

  CLI::App* explain = add_command(
      program, "explain",
      "Show parameter groups, schedules and hooks of a config, and what graph mode captures, without training",
      explain_command);
  add_config(explain, arguments);
  add_mode(explain, arguments);
}

void add_generate(Program& program) {
  GenerateOptions& options = program.arguments.generate;
  CLI::App* generate = add_command(program, "generate", "Let a Gpt go on with a text", generate_command);
  add_config(generate, program.arguments);
  add_mode(generate, program.arguments);
  add_checkpoint(generate, program.arguments);
  const auto add = [&](const char* name, auto& target, const char* text) {
    return generate->add_option(name, target, text);
  };
  add("--prompt", options.prompt, "the text's beginning; default: a new line")->type_name("TEXT");
  add("--length", options.length, "characters to generate (default 200)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->option_text("N");
  add("--temperature", options.temperature, "below 1 keeps to what is likely; 0: always the likeliest (default 1)")
      ->check(CLI::Range(0.0, 1e6))
      ->option_text("T");
  add("--top-k", options.top_k, "only among the K likeliest characters; 0: all (default)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->option_text("K");
  add("--seed", options.seed, "another text for each (default 0)")->option_text("N");
}

void add_profile(Program& program) {
  Arguments& arguments = program.arguments;
  CLI::App* profile = add_command(program, "profile", "Show where a step's time and memory go", profile_command);
  add_config(profile, arguments);
  add_mode(profile, arguments);
  profile->add_option("--steps", arguments.profile_steps, "that are timed (default 20)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->option_text("N");
}

void add_sweep(Program& program) {
  Arguments& arguments = program.arguments;
  CLI::App* sweep = add_command(program, "sweep",
                                "Train with every combination of values (key=a,b,c) and rank the runs; the same call "
                                "goes on with what is not done",
                                sweep_command);
  add_config(sweep, arguments);
  add_mode(sweep, arguments);
  sweep->add_option("--jobs", arguments.jobs, "runs at once (default 1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->option_text("N");
  sweep->add_flag("--stop-bad", arguments.stop_bad,
                  "stop a run whose best result so far is worse than the median of three or more others at that step");
}

// What looks at runs that were written.
void add_run_tools(Program& program) {
  Arguments& arguments = program.arguments;
  CLI::App* report = add_command(program, "report",
                                 "Show runs as one HTML page: curves, pictures, configs, environment", report_command);
  report->add_option("RUN", arguments.runs, "folders of runs (work_dir); several are laid over each other")->required();
  report->add_option("--output", arguments.output, "where the page goes; default: report.html in the first folder")
      ->type_name("FILE");

  CLI::App* list = add_command(program, "list", "List the runs below a folder, the newest first", list_command);
  arguments.folder = "runs";
  list->add_option("FOLDER", arguments.folder, "default: runs");
  add_json(list, arguments, "write the list to this file");

  CLI::App* diff = add_command(
      program, "diff", "Show in what two runs differ: configs with origins, environment, results", diff_command);
  diff->add_option("RUN", arguments.runs, "two folders of runs")->required()->expected(2);
  add_json(diff, arguments, "write the differences to this file");
}

void add_tools(Program& program) {
  Arguments& arguments = program.arguments;
  CLI::App* inspect = add_command(program, "inspect", "Verify a checkpoint and list what it holds", inspect_command);
  inspect->add_option("CHECKPOINT", arguments.checkpoint, "folder step-N, or one above it")->required();
  add_json(inspect, arguments, "write the list to this file");

  CLI::App* export_ =
      add_command(program, "export", "Write the weights of a checkpoint for Python: safetensors, or .pt for torch.load",
                  export_command);
  export_->add_option("CHECKPOINT", arguments.checkpoint, "checkpoint, or a file of weights")->required();
  export_->add_option("FILE", arguments.file, "*.safetensors or *.pt")->required();
  export_->add_option("--weights", arguments.weights, "model (default), or the name of an average: ema")
      ->option_text("model|ema");
  add_json(export_, arguments, "write what was exported to this file");

  CLI::App* doctor =
      add_command(program, "doctor", "Show versions, device and threads, and what is missing", doctor_command);
  add_json(doctor, arguments, "write it to this file");

  // Listed here; its words are read elsewhere, as most are for others.
  program.app.add_subcommand("launch",
                             "Start N processes that train together: launch -n N train CONFIG ... (torchrun)");

  CLI::App* help =
      add_command(program, "help", "List the keys of a config, or of a type that it may name", help_command);
  help->add_option("TOPIC", arguments.topic,
                   "a key (trainer, data.train, lr), a type (AdamW), its key (AdamW.lr) or a command (train)");
  help->add_flag("--markdown", arguments.markdown, "all keys of all types as Markdown pages");
}

// The parser only says that a command is required.
void check_command(const CLI::App& app, int argc, char** argv) {
  if (argc >= 2 && argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (argc >= 2 && command->get_name() == argv[1]) return;
    names.push_back(command->get_name());
  }
  if (argc < 2) {
    throw CLI::ParseError("found no command, expected one of " + join(names), CLI::ExitCodes::RequiredError);
  }
  throw CLI::ParseError(std::string("unknown command '") + argv[1] + "'; " + known_and_nearest(argv[1], names),
                        CLI::ExitCodes::ExtrasError);
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
  std::cerr << "error: " + rank_prefix() + harmless_text(text) + "\n" << std::flush;
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

// What the words say of the launch, whatever else is wrong with them; nothing if they cannot be read, since nobody can
// be told then, or if this process is the only one.
std::optional<Launch> launch_in(std::vector<std::string> words) {
  CLI::App app;
  LaunchFlags flags;
  add_launch(&app, flags);
  app.set_help_flag();
  app.allow_extras();
  try {
    app.parse(std::move(words));
    const Launch launch = read_launch(flags);
    if (launch.world_size > 1) return launch;
  } catch (const CLI::ParseError&) {
  } catch (const ConfigError&) {
  }
  return std::nullopt;
}

bool is_command(const CLI::App& app, const std::string& word) {
  return std::ranges::any_of(app.get_subcommands({}), [&](const auto* command) { return command->get_name() == word; });
}

// Of several processes that were to run one command, this one cannot: the others must not wait for it.
int refuse_usage(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const std::string word = argc >= 2 ? argv[1] : "";
  const bool is_for_one = word != "train" && word != "eval" && is_command(app, word);
  const std::optional<Launch> launch = launch_in(words_of(argc, argv));
  const bool is_wrong = error.get_exit_code() != 0;  // --help ends the parser in the same way
  if (!is_wrong || is_for_one || !launch) {
    const int code = app.exit(error) == 0 ? 0 : 2;
    const bool has_extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    for (int i = 2; has_extras && i < argc; ++i) {
      if (std::string_view(error.what()).find(argv[i]) == std::string_view::npos) continue;
      if (const std::string hint = hint_for_flag(argv[i]); !hint.empty()) std::cerr << argv[i] << hint << std::endl;
    }
    return code;
  }
  refuse_call(*launch, std::string("[duet] ") + error.what());
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
  add_train(program);
  add_other_runs(program);
  add_generate(program);
  add_sweep(program);
  add_profile(program);
  add_run_tools(program);
  add_tools(program);
  if (argc == 3 && std::string(argv[1]) == "help" && is_command(app, argv[2])) {
    char flag[] = "--help";
    char* words[] = {argv[0], argv[2], flag};
    return run_call(3, words);
  }
  if (argc >= 2 && std::string(argv[1]) == "launch") return launch_command({argv + 2, argv + argc}, argv[0]);
  try {
    check_command(app, argc, argv);
    app.parse(words_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    return refuse_usage(app, error, argc, argv);
  }
  return program.chosen();
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
  return run_safely([&] { return run_call(argc, argv); });
}

}  // namespace duet
