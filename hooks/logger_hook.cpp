#include "hooks/logger_hook.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <c10/util/StringUtil.h>
#include "base/detail/pattern.h"
#include "base/error.h"
#include "hooks/detail/log_text.h"
#include "hooks/detail/log_window.h"
#include "hooks/detail/run_info_hooks.h"
#include "hooks/detail/shared.h"
#include "hooks/loggers/async_sink.h"
#include "hooks/loggers/sinks.h"
#include "io/file_io.h"

namespace duet {

namespace {

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// NaN if nobody publishes it.
double gauge(const TrainContext& context, const std::string& name) {
  const auto found = context.log.gauges().find(name);
  return found == context.log.gauges().end() ? std::nan("") : found->second();
}

void require_name(const char* field, const std::string& value) {
  if (value.size() <= 128 && value.find_first_of("/\\#?%:") == std::string::npos) return;
  throw ConfigError(std::string("[WandbSink] ") + field + " is '" + value +
                    "', expected at most 128 characters without / \\ # ? % :");
}

void check_window(const LogWindowOptions& window) {
  const Pattern mean_pattern("[LoggerHook] mean_pattern", window.mean_pattern);
  std::set<std::string> names;
  for (const LogStatistic& statistic : window.custom_cfg) {
    check_options(statistic);
    const std::string& name = statistic.log_name.empty() ? statistic.data_src : statistic.log_name;
    require<ConfigError>(names.insert(name).second,
                         "[LoggerHook] custom_cfg logs two numbers as '" + name +
                             "', expected different names; give one of them another log_name");
  }
}

}  // namespace

const OptionFields& LogSinkOptions::fields() {
  using O = LogSinkOptions;
  return described<O>("LogSink", [](const auto& add) {
    add("type", &O::type, "what is written").one_of({"terminal", "jsonl", "tensorboard", "wandb"}).needed();
    add("file", &O::file, "of jsonl; default that of the logger");
    add("folder", &O::folder, "of tensorboard, wandb; default <work_dir>/<type>");
    add("project", &O::project, "of wandb; default duet");
    add("name", &O::name, "of wandb: what is shown for the run");
    add("entity", &O::entity, "of wandb: user or team");
    add("id", &O::id, "of wandb: the run's");
    add.rule([](const O& o) {
      if (o.type != "wandb") return;
      require_name("project", o.project);
      require_name("entity", o.entity);
      require_name("id", o.id);
    });
  });
}

const OptionFields& LogStatistic::fields() {
  using O = LogStatistic;
  return described<O>("LogStatistic", [](const auto& add) {
    add("data_src", &O::data_src, "the name it is made of").needed();
    add("method_name", &O::method_name, "how").one_of({"mean", "median", "min", "max", "current"});
    add("window_size", &O::window_size, "steps, epoch or global")
        .in(at_least(kGlobalWindow))
        .expects("at least 1 step, epoch or global")
        .read_by_hand("integer, epoch, global", "10");
    add("log_name", &O::log_name, "how it is logged; default in the place of data_src");
    add.rule([](const O& o) {
      require<ConfigError>(!o.data_src.empty(),
                           "[LogStatistic] found no data_src, expected the name of a logged number; add it");
    });
  });
}

const OptionFields& LoggerHookOptions::fields() {
  using O = LoggerHookOptions;
  return described<O>("LoggerHook", [](const auto& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.window.*member; }; };
    add("interval", &O::interval, "steps between lines; each reads the device once").in(at_least(1));
    add("by_epoch", &O::by_epoch, "the interval counts from the beginning of each epoch");
    add("ignore_last", &O::ignore_last, "by_epoch: no line for the rest of an epoch that has had one");
    add("log_metric_by_epoch", &O::log_metric_by_epoch, "results of evaluations lie at their epoch, not at their step");
    add("window_size", of(&LogWindowOptions::window_size), "steps that smoothed numbers are the mean of")
        .in(at_least(1));
    add("mean_pattern", of(&LogWindowOptions::mean_pattern), "regular expression of the names that are smoothed");
    add.key("custom_cfg", "list",
            "{data_src, method_name, window_size, log_name}: further numbers made of the last values");
    add.key("sinks", "list of terminal, jsonl, tensorboard, wandb, or maps with such a type", "where lines go");
    add("file", &O::file, "file of the sink jsonl; default <work_dir>/log.jsonl");
    add("progress", &O::progress, "a progress bar between lines");
    add("model_summary", &O::model_summary, "the model's parts and sizes when training starts");
    add.rule([](const O& o) {
      check_window(o.window);
      for (const LogSinkOptions& sink : o.sinks) check_options(sink);
    });
  });
}

LoggerHook::LoggerHook(LoggerHookOptions options, std::vector<std::unique_ptr<LogSink>> extra)
    : options_(std::move(options)), extra_(std::move(extra)) {
  check_options(options_);
  start_ = mark_ = steady_seconds();
  window_ = std::make_unique<LogWindow>(options_.window);
}

LoggerHook::~LoggerHook() = default;

// Sinks stay open for as long as the hook lives: a trainer may train, test and train again.
void LoggerHook::open(TrainContext& context) {
  if (sinks_ || !context.is_main) return;  // rank 0 logs for all
  if (run_id_.empty()) run_id_ = file_io::random_id().substr(0, 8);
  std::vector<std::unique_ptr<LogSink>> sinks;
  for (const LogSinkOptions& sink : options_.sinks) {
    if (auto made = make_sink(sink, options_, context.work_dir, run_id_)) sinks.push_back(std::move(made));
  }
  for (auto& sink : extra_) sinks.push_back(std::move(sink));
  extra_.clear();
  sinks_ = std::make_unique<AsyncSink>(std::move(sinks));
  if (context.log.gauges().count("lr") == 0) publish_rate(context);  // without RuntimeInfoHook
  listen(context);
}

// What is published after this hook has gone is dropped.
void LoggerHook::listen(TrainContext& context) {
  RunLog::ImageListener image;
  if (sinks_->takes_images()) {
    image = [this, &context](const std::string& name, const at::Tensor& pixels) {
      emit(context, {.kind = "image", .step = context.progress.step, .images = {{name, pixels.clone()}}});
    };
  }
  const auto text = [this, &context](const std::string& name, const std::string& said) {
    emit(context, "text", {{name, said}}, "");
  };
  const auto histograms = [this, &context](const NamedHistograms& made) {
    logged_step_ = std::max(logged_step_, context.progress.step);  // going back makes it void
    emit(context, {.kind = "histogram", .step = context.progress.step, .histograms = made});
  };
  listening_ = context.log.listen(std::move(image), text, histograms);
}

void LoggerHook::emit(TrainContext& context, LogRecord record) {
  open(context);
  if (!sinks_) return;
  record.wall_time = wall_time();
  sinks_->put(record);
  static const std::set<std::string> kLines = {"train", "epoch", "val", "test"};
  if (!kLines.contains(record.kind)) return;
  context.log_line = {.kind = record.kind, .values = {{"step", static_cast<double>(record.step)}}};
  for (const auto& [name, value] : record.values) {
    if (const auto* number = std::get_if<double>(&value)) context.log_line.values[name] = *number;
    if (const auto* count = std::get_if<int64_t>(&value)) context.log_line.values[name] = static_cast<double>(*count);
  }
  context.trainer.call_hooks(HookPoint::kOnLog);
}

void LoggerHook::emit(TrainContext& context, const char* kind, LogValues values, std::string line) {
  emit(context, {.kind = kind, .step = context.progress.step, .values = std::move(values), .line = std::move(line)});
}

void LoggerHook::flush() {
  if (sinks_) sinks_->flush();
}

// Before anybody else has something to log: sinks learn from the first record whether a run goes on.
void LoggerHook::before_run(TrainContext& context) {
  if (!context.control.only_evaluates()) start_run(context);
}

void LoggerHook::start_run(TrainContext& context) {
  if (started_) return;
  open(context);
  started_ = true;
  const int64_t total = context.progress.run_length();
  emit(context, "start", {{"mode", context.mode}, {"steps", total}},
       c10::str("training in mode ", context.mode, " from step ", of_total(context.progress.step, total)));
}

void LoggerHook::before_train(TrainContext& context) {
  start_run(context);
  start_ = mark_ = steady_seconds();
  line_ = {};
  if (!options_.model_summary || !context.is_main) return;
  const std::string summary = model_summary(context.task);
  emit(context, "text", {{"model", summary}}, summary);
}

void LoggerHook::before_train_epoch(TrainContext& /*context*/) { window_->start_epoch(); }

void LoggerHook::after_train_iter(TrainContext& context) {
  if (!context.is_main) return;
  collect(context);
  if (is_due(context)) {
    log_step(context);
  } else if (sinks_ && sinks_->shows_progress()) {
    show_progress(context);
  }
}

bool LoggerHook::is_due(const TrainContext& context) const {
  const int64_t position = options_.by_epoch ? context.progress.step_in_epoch : context.progress.step;
  if (position % options_.interval == 0) return true;
  if (context.progress.step == context.progress.run_length() || !context.control.stop_reason.empty()) return true;
  const int64_t epoch = context.progress.steps_per_epoch;
  const bool epoch_ends = options_.by_epoch && epoch > 0 && context.progress.step_in_epoch == epoch;
  return epoch_ends && (!options_.ignore_last || epoch < options_.interval);
}

// Runs at every step: nothing here may read the device or cost much.
void LoggerHook::collect(TrainContext& context) {
  double seconds = context.step.seconds;
  if (seconds <= 0) {  // nobody measures
    const double now = steady_seconds();
    seconds = now - std::exchange(mark_, now);
  }
  ++line_.steps;
  line_.seconds += seconds;
  if (context.step.micro_batches != nullptr) line_.samples += context.step.micro_batches->samples();
  line_.epoch = shown_epoch(context);
  line_.iter = context.progress.step_in_epoch;

  window_->start_step();
  window_->add("data_time", context.step.data_seconds);
  window_->add("time", seconds);
  for (const auto& [name, value] : context.log.values()) window_->add(name, value);
}

void LoggerHook::log_step(TrainContext& context) {
  LogValues values = {{"mode", context.mode}};
  const auto put_gauge = [&](const std::string& name, double value) {
    if (!std::isnan(value)) put_value(values, name, value);
  };
  put_gauge("lr", gauge(context, "lr"));
  for (const auto& [name, value] : window_->read()) put_value(values, name, value);
  for (const auto& [name, ask] : context.log.gauges()) {
    if (name != "lr") put_gauge(name, ask());
  }
  if (line_.samples > 0 && line_.seconds > 0) {
    put_value(values, "samples_per_second", static_cast<double>(line_.samples) / line_.seconds);
  }
  put_value(values, "epoch", line_.epoch);
  put_value(values, "iter", line_.iter);
  const LogValue* loss = find_value(values, "loss");
  last_loss_ = loss == nullptr ? "" : number_text(std::get<double>(*loss));
  const int64_t epoch = std::exchange(line_, {}).epoch;
  logged_step_ = context.progress.step;
  std::string line = train_line(context, epoch, values);
  emit(context, "train", std::move(values), std::move(line));
}

void LoggerHook::after_load_checkpoint(TrainContext& context) {
  const int64_t step = context.progress.step, last = std::exchange(logged_step_, std::min(logged_step_, step));
  if (!started_ || !context.is_main || step >= last) return;
  emit(context, "void", {{"last_step", last}},
       c10::str("back to step ", step, ": the lines of the steps up to ", last, " are void"));
}

void LoggerHook::after_val_epoch(TrainContext& context) { log_metrics(context, "val"); }
void LoggerHook::after_test_epoch(TrainContext& context) { log_metrics(context, "test"); }

void LoggerHook::log_metrics(TrainContext& context, const char* kind) {
  const int64_t epoch = shown_epoch(context);
  LogRecord record{.kind = kind,
                   .step = options_.log_metric_by_epoch ? epoch : context.progress.step,
                   .values = {{"mode", context.mode}, {"epoch", epoch}}};
  for (const auto& [name, value] : context.evaluation.metrics) put_value(record.values, name, value);
  record.line = metrics_line(context, kind);
  emit(context, std::move(record));
}

void LoggerHook::on_exception(TrainContext& context) { log_failure(context); }

// Once a run. An evaluation that fails is no end of the training that the log is of.
void LoggerHook::log_failure(TrainContext& context) {
  if (std::exchange(told_failure_, true)) return;
  const std::string& error = context.control.error;
  if (context.control.only_evaluates()) {
    const std::string kind = to_string(context.control.kind);
    return emit(context, "text", {{kind + "_error", error}}, kind + " failed: " + error);
  }
  emit(context, "error", {{"mode", context.mode}, {"error", error}},
       c10::str("training failed at step ", context.progress.step, ": ", error));
}

// A hook that runs later than this one, or a loop of the user's own, may have ended the run.
void LoggerHook::after_train(TrainContext& context) {
  if (context.control.error.empty() && line_.steps > 0) log_step(context);
  started_ = false;
  flush();
}

void LoggerHook::after_train_epoch(TrainContext& context) {
  const double seconds = context.progress.epoch_seconds;  // 0: nobody measures
  if (seconds <= 0 && context.log.values().empty()) return;
  const int64_t epoch = shown_epoch(context);
  LogValues values = {{"mode", context.mode}, {"epoch", epoch}};
  std::string line;
  if (seconds > 0) put_value(values, "epoch_time", seconds);
  for (const auto& [name, tensor] : context.log.values()) {
    const double value = tensor.item<double>();
    put_value(values, name, value);
    line += "  " + name + " " + number_text(value);
  }
  if (!line.empty()) line = "epoch " + of_total(epoch, context.progress.max_epochs) + line;
  emit(context, "epoch", std::move(values), std::move(line));
}

// How the run has ended: any hook's after_train may still fail, the last save above all, or find that it has diverged.
void LoggerHook::after_run(TrainContext& context) {
  if (!context.control.error.empty()) {
    log_failure(context);
  } else if (!context.control.only_evaluates()) {
    log_end(context);
  }
  told_failure_ = false;
  flush();
}

void LoggerHook::log_end(TrainContext& context) {
  const double seconds = steady_seconds() - start_;
  const std::string reason = context.control.stop_reason.empty() ? "done" : context.control.stop_reason;
  const UncheckedSteps unchecked = context.identity.unchecked.value_or(UncheckedSteps());
  LogValues values = {{"mode", context.mode},
                      {"reason", reason},
                      {"outcome", to_string(context.control.outcome)},
                      {"seconds", seconds},
                      {"epoch", shown_epoch(context)}};
  std::string line =
      c10::str("training ends at step ", context.progress.step, " after ", duration_text(seconds), ": ", reason);
  if (context.mode == to_string(Mode::kGraph) || unchecked.count > 0) {
    values.emplace_back("unchecked", unchecked.count);
    line += "; " + to_text(unchecked);
  }
  emit(context, "stop", std::move(values), std::move(line));
}

void LoggerHook::show_progress(TrainContext& context) {
  const double now = steady_seconds();
  if (now - shown_at_ < 0.1) return;
  shown_at_ = now;
  emit(context, "progress", {}, progress_line(context, last_loss_, gauge(context, "eta")));
}

StateDict LoggerHook::state_dict() const {
  StateDict state;
  state.put("window", window_->state_dict());
  state.set("run_id", StateValue(run_id_));  // empty, too: a load that is taken back puts it back
  return state;
}

void LoggerHook::load_state_dict(const StateDict& state) {
  window_->load_state_dict(state.part("window"));
  if (state.has("run_id")) run_id_ = state.text("run_id");
}

}  // namespace duet
