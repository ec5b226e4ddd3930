#include <duet/cli/run_cli.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <c10/util/Exception.h>
#include <duet/cli/commands/commands.h>
#include <duet/cli/load_from_config.h>
#include <duet/cli/registry.h>
#include <duet/core/error.h>
#include <duet/core/nearest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <vector>

namespace duet {

RunConfig load_run_config(const ConfigArguments& arguments, const std::string& load_from,
                          const std::string& dry_run) {
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

void add_config(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("CONFIG", arguments.config, "YAML file")->required();
  command.add_option("key=value", arguments.overrides, "config values to set, such as optim_wrapper.optimizer.lr=0.01; ~key deletes one; duet help lists all keys");
  command.add_option("--json", arguments.json, "write the results to this file")->type_name("FILE");
}

void add_mode(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("--mode", arguments.mode, "eager or graph; wins over the config")
      ->check(CLI::IsMember({"eager", "graph"}))
      ->option_text("eager|graph");
}

void add_checkpoint(CLI::App& command, EvalArguments& arguments) {
  command.add_option("--checkpoint", arguments.checkpoint, "best, latest, a folder (checkpoint or work_dir), or a file of weights; default: best, else latest")
      ->option_text("PATH");
}

void add_training_commands(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* train = app.add_subcommand("train", "Train the model of a config");
  add_config(*train, arguments.train);
  add_mode(*train, arguments.train);
  train
      ->add_option("--resume", arguments.train.resume, "none (default), auto (newest good checkpoint), a checkpoint, or a work_dir")
      ->option_text("auto|none|PATH");
  train
      ->add_option("--load-from", arguments.train.load_from,
                   "start from the weights of a checkpoint, safetensors or .pt file; a resumed checkpoint wins")
      ->option_text("PATH");
  train->add_flag("--dry-run{1}", arguments.train.dry_run, "try everything out in N updates (default 1); leaves no files")
      ->option_text("[N]")
      ->excludes("--resume");
  train->callback([&] { chosen = [&] { return train_command(arguments.train); }; });

  CLI::App* eval = app.add_subcommand("eval", "Evaluate a checkpoint on data.test, or data.val");
  add_config(*eval, arguments.eval);
  add_mode(*eval, arguments.eval);
  add_checkpoint(*eval, arguments.eval);
  eval->callback([&] { chosen = [&] { return eval_command(arguments.eval); }; });

  CLI::App* predict = app.add_subcommand("predict", "Write what a checkpoint predicts on data.predict, data.test or data.val");
  add_config(*predict, arguments.predict);
  add_mode(*predict, arguments.predict);
  add_checkpoint(*predict, arguments.predict);
  predict->add_option("--output", arguments.predict.output, "folder for the predictions; default: WORK_DIR/predictions")
      ->type_name("FOLDER");
  predict->callback([&] { chosen = [&] { return predict_command(arguments.predict); }; });

  CLI::App* compare = app.add_subcommand("compare", "Train in both modes from one seed: same bits? how much faster?");
  add_config(*compare, arguments.compare);
  compare->add_option("--updates", arguments.compare.updates, "updates per mode (default 100)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->option_text("N");
  compare->callback([&] { chosen = [&] { return compare_command(arguments.compare); }; });
}

void add_explain(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* explain = app.add_subcommand("explain", "Show parameter groups, schedules and hooks of a config without training");
  add_config(*explain, arguments.explain);
  add_mode(*explain, arguments.explain);
  explain->callback([&] { chosen = [&] { return explain_command(arguments.explain); }; });
}

void add_other_commands(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* inspect = app.add_subcommand("inspect", "Verify a checkpoint and list what it holds");
  inspect->add_option("CHECKPOINT", arguments.inspect.checkpoint, "folder step-N, or one above it")->required();
  inspect->add_option("--json", arguments.inspect.json, "write the list to this file")->type_name("FILE");
  inspect->callback([&] { chosen = [&] { return inspect_command(arguments.inspect); }; });

  CLI::App* export_ = app.add_subcommand("export", "Write the weights of a checkpoint for Python: safetensors, or .pt for torch.load");
  export_->add_option("CHECKPOINT", arguments.export_.checkpoint, "checkpoint, or a file of weights")->required();
  export_->add_option("FILE", arguments.export_.file, "*.safetensors or *.pt")->required();
  export_->add_option("--weights", arguments.export_.weights, "model (default), or the name of an average: ema")->option_text("model|ema");
  export_->add_option("--json", arguments.export_.json, "write what was exported to this file")->type_name("FILE");
  export_->callback([&] { chosen = [&] { return export_command(arguments.export_); }; });

  CLI::App* doctor = app.add_subcommand("doctor", "Show versions, device and threads, and what is missing");
  doctor->add_option("--json", arguments.doctor.json, "write it to this file")->type_name("FILE");
  doctor->callback([&] { chosen = [&] { return doctor_command(arguments.doctor); }; });
}

void add_help(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* help = app.add_subcommand("help", "List the keys of a config, or of a type that it may name");
  help->add_option("TOPIC", arguments.help.topic, "a key (trainer, data.train) or a type (AdamW, EMAHook)");
  help->callback([&] { chosen = [&] { return help_command(arguments.help); }; });
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

// The words after the program's name, last one first as the parser takes them. A number behind --dry-run is joined to it:
// the parser would take whatever stands there, such as the config.
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

// LibTorch's texts go on with C++ frames, which help nobody here.
std::string without_frames(const std::string& text) { return text.substr(0, text.find("\nException raised from")); }

int report_error(const std::string& text, int code) {
  std::cout.flush();
  std::cerr << "error: " << text << std::endl;
  return code;
}

// The first line of LibTorch's text, without the source line that a failed allocation begins with.
std::string text_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const std::string line = text.substr(0, text.find('\n'));
  const std::size_t no_memory = line.find("can't allocate memory");
  if (no_memory == std::string::npos) return line;
  return "out of memory: " + line.substr(no_memory) + "; use a smaller batch or model";
}

int run_safely(const Command& command) {
  try {
    return command();
  } catch (const Error& error) {
    return report_error(without_frames(error.what()), error.exit_code());
  } catch (const c10::Error& error) {
    return report_error(text_of(error), 1);
  } catch (const std::bad_alloc&) {
    return report_error("out of memory; use a smaller batch or model", 1);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return report_error(text.substr(0, text.find('\n')), 1);
  }
}

}  // namespace

int run_cli(int argc, char** argv) {
  CLI::App app("duet trains a LibTorch model op by op (eager) or as one captured graph, with the same result.", "duet");
  app.set_version_flag("--version", std::string("duet ") + DUET_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done, 1 failed, 2 bad config or usage, 3 bad data, 4 no usable checkpoint, 75 stopped by a "
             "signal with state saved, 128 + N by signal N with nothing to save (130: Ctrl-C).");
  Arguments arguments;
  Command chosen;
  add_training_commands(app, arguments, chosen);
  add_explain(app, arguments, chosen);
  add_other_commands(app, arguments, chosen);
  add_help(app, arguments, chosen);
  try {
    check_command(app, argc, argv);
    app.parse(words_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run_safely([&] {
    register_builtin_types();
    return chosen();
  });
}

}  // namespace duet
