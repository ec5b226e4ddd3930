#include "cli/run_cli.h"
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/config/load_from_config.h"
#include "cli/failure.h"
#include "cli/ranks.h"
#include "cli/registry.h"
#include "cli/torchrun.h"

namespace duet {

RunConfig load_run_config(const ConfigArguments& arguments, const std::string& load_from, const std::string& dry_run) {
  ConfigNode root = ConfigNode::parse_file(arguments.config);
  for (const std::string& assignment : arguments.overrides) root.override_with(assignment);
  if (!arguments.mode.empty()) root.override_with("mode=" + arguments.mode, "--mode");
  if (!load_from.empty()) override_load_from(root, load_from);
  if (!dry_run.empty()) root.override_with("trainer.fast_dev_run=" + dry_run, "--dry-run");
  return parse_run_config(root, std::filesystem::path(arguments.config).stem().string());
}

namespace {

// Every command's arguments, filled by the parser.
struct Arguments {
  TrainArguments train;
  EvalArguments eval;
  PredictArguments predict;
  CompareArguments compare;
  ExplainArguments explain;
  InspectArguments inspect;
  ExportArguments export_;
  DoctorArguments doctor;
  HelpArguments help;
};

using Command = std::function<int()>;

// A command that several processes would only do several times.
Command alone(const std::string& name, Command command) {
  return [name, command = std::move(command)] {
    refuse_ranks(name);
    return command();
  };
}

void add_config(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("CONFIG", arguments.config, "YAML file")->required();
  command.add_option(
      "key=value", arguments.overrides,
      "config values to set, such as optim_wrapper.optimizer.lr=0.01; ~key deletes one; duet help lists all keys");
  command.add_option("--json", arguments.json, "write the results to this file")->type_name("FILE");
}

void add_mode(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("--mode", arguments.mode, "eager or graph; wins over the config")
      ->check(CLI::IsMember({"eager", "graph"}))
      ->option_text("eager|graph");
}

void add_checkpoint(CLI::App& command, EvalArguments& arguments) {
  command
      .add_option("--checkpoint", arguments.checkpoint,
                  "best, latest, a folder (checkpoint or work_dir), or a file of weights; default: best, else latest")
      ->option_text("PATH");
}

// What a launcher's variables say; for processes that are started by hand.
void add_launch(CLI::App& command, LaunchFlags& flags) {
  const auto add = [&](const char* name, auto& target, const char* text, const char* type) {
    command.add_option(name, target, text)
        ->option_text(type)
        ->group("Processes (by default as torchrun, srun or mpirun say)");
  };
  add("--rank", flags.rank, "this process among all of them, from 0", "N");
  add("--world-size", flags.world_size, "how many there are", "N");
  add("--local-rank", flags.local_rank, "this process among those of its machine: its GPU", "N");
  add("--master-addr", flags.master_address, "the machine of rank 0", "HOST");
  add("--master-port", flags.master_port, "a free port there", "PORT");
}

void add_training_commands(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* train = app.add_subcommand("train", "Train the model of a config");
  add_config(*train, arguments.train);
  add_mode(*train, arguments.train);
  train
      ->add_option("--resume", arguments.train.resume,
                   "none (default), auto (newest good checkpoint; default when a launcher starts the run anew), a "
                   "checkpoint, or a work_dir")
      ->option_text("auto|none|PATH");
  train
      ->add_option("--load-from", arguments.train.load_from,
                   "start from the weights of a checkpoint, safetensors or .pt file; a resumed checkpoint wins")
      ->option_text("PATH");
  train->add_flag("--dry-run{1}", arguments.train.dry_run, "try everything out in N steps (default 1); leaves no files")
      ->option_text("[N]")
      ->excludes("--resume");
  add_launch(*train, arguments.train.launch);
  train->callback([&] { chosen = [&] { return train_command(arguments.train); }; });

  CLI::App* eval = app.add_subcommand("eval", "Evaluate a checkpoint on data.test, or data.val");
  add_config(*eval, arguments.eval);
  add_mode(*eval, arguments.eval);
  add_checkpoint(*eval, arguments.eval);
  add_launch(*eval, arguments.eval.launch);
  eval->callback([&] { chosen = [&] { return eval_command(arguments.eval); }; });

  CLI::App* predict =
      app.add_subcommand("predict", "Write what a checkpoint predicts on data.predict, data.test or data.val");
  add_config(*predict, arguments.predict);
  add_mode(*predict, arguments.predict);
  add_checkpoint(*predict, arguments.predict);
  predict->add_option("--output", arguments.predict.output, "folder for the predictions; default: WORK_DIR/predictions")
      ->type_name("FOLDER");
  predict->callback([&] { chosen = alone("predict", [&] { return predict_command(arguments.predict); }); });

  CLI::App* compare = app.add_subcommand("compare", "Train in both modes from one seed: same bits? how much faster?");
  add_config(*compare, arguments.compare);
  compare->add_option("--steps", arguments.compare.steps, "steps per mode (default 100)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->option_text("N");
  compare->callback([&] { chosen = alone("compare", [&] { return compare_command(arguments.compare); }); });
}

void add_explain(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* explain =
      app.add_subcommand("explain", "Show parameter groups, schedules and hooks of a config without training");
  add_config(*explain, arguments.explain);
  add_mode(*explain, arguments.explain);
  explain->callback([&] { chosen = alone("explain", [&] { return explain_command(arguments.explain); }); });
}

void add_other_commands(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* inspect = app.add_subcommand("inspect", "Verify a checkpoint and list what it holds");
  inspect->add_option("CHECKPOINT", arguments.inspect.checkpoint, "folder step-N, or one above it")->required();
  inspect->add_option("--json", arguments.inspect.json, "write the list to this file")->type_name("FILE");
  inspect->callback([&] { chosen = alone("inspect", [&] { return inspect_command(arguments.inspect); }); });

  CLI::App* export_ =
      app.add_subcommand("export", "Write the weights of a checkpoint for Python: safetensors, or .pt for torch.load");
  export_->add_option("CHECKPOINT", arguments.export_.checkpoint, "checkpoint, or a file of weights")->required();
  export_->add_option("FILE", arguments.export_.file, "*.safetensors or *.pt")->required();
  export_->add_option("--weights", arguments.export_.weights, "model (default), or the name of an average: ema")
      ->option_text("model|ema");
  export_->add_option("--json", arguments.export_.json, "write what was exported to this file")->type_name("FILE");
  export_->callback([&] { chosen = alone("export", [&] { return export_command(arguments.export_); }); });

  CLI::App* doctor = app.add_subcommand("doctor", "Show versions, device and threads, and what is missing");
  doctor->add_option("--json", arguments.doctor.json, "write it to this file")->type_name("FILE");
  doctor->callback([&] { chosen = [&] { return doctor_command(arguments.doctor); }; });
}

void add_help(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* help = app.add_subcommand("help", "List the keys of a config, or of a type that it may name");
  help->add_option("TOPIC", arguments.help.topic, "a key (trainer, data.train) or a type (AdamW, EMAHook)");
  help->callback([&] { chosen = [&] { return help_command(arguments.help); }; });
}

// Listed here; its words are read elsewhere, as most are for others.
void add_launcher(CLI::App& app) {
  app.add_subcommand("launch", "Start N processes that train together: launch -n N train CONFIG ... (torchrun)");
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
  std::cerr << "error: " << rank_prefix() << text << std::endl;
  write_error_file(rank_prefix() + text);
  return code;
}

int run_safely(const Command& command) {
  try {
    return command();
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    return report_error(failure.text, failure.exit_code);
  }
}

// Of several processes that were to run one command, this one cannot: the others must not wait for it.
int refuse_usage(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const std::string word = argc >= 2 ? argv[1] : "";
  const auto known = app.get_subcommands({});
  const bool is_for_one =
      word != "train" && word != "eval" &&
      std::any_of(known.begin(), known.end(), [&](const auto* command) { return command->get_name() == word; });
  const std::optional<Launch> launch = launch_in({argv + 1, argv + argc});
  const bool is_wrong = error.get_exit_code() != 0;  // --help ends the parser in the same way
  if (!is_wrong || is_for_one || !launch) return app.exit(error) == 0 ? 0 : 2;
  return run_safely([&]() -> int { refuse_call(*launch, std::string("[duet] ") + error.what()); });
}

}  // namespace

int run_cli(int argc, char** argv) {
  CLI::App app("duet trains a LibTorch model op by op (eager) or as one captured graph, with the same result.", "duet");
  app.set_version_flag("--version", std::string("duet ") + DUET_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 bad config or usage, 3 bad data, 4 no usable checkpoint, 6 another process of "
      "the run "
      "was lost (a restart goes on from the last checkpoint), 75 stopped by a "
      "signal with state saved, 128 + N by signal N with nothing to save (130: Ctrl-C).");
  Arguments arguments;
  Command chosen;
  add_training_commands(app, arguments, chosen);
  add_explain(app, arguments, chosen);
  add_other_commands(app, arguments, chosen);
  add_launcher(app);
  add_help(app, arguments, chosen);
  if (argc >= 2 && std::string(argv[1]) == "launch") {
    return run_safely([&] { return launch_command({argv + 2, argv + argc}, path_of_program(argv[0])); });
  }
  try {
    check_command(app, argc, argv);
    app.parse(words_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    return refuse_usage(app, error, argc, argv);
  }
  return run_safely([&] {
    register_builtin_types();
    return chosen();
  });
}

}  // namespace duet
