// The table of settings.
#include "halfstep/demo/settings.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "halfstep/demo/setting_values.h"

namespace halfstep::demo {
namespace {

using O = DemoOptions;
using Name = std::string_view;
using Value = std::string_view;
using Text = std::optional<std::string>;
using Form = Setting::Form;
using Task = Setting::Task;
using Use = Setting::Use;

constexpr int64_t kMaxCount = 1'000'000'000;
constexpr int64_t kMaxWidth = 65'536;  // of a batch or a layer: what fits in memory
constexpr std::string_view kScaler = "Gradient scaler (fp16)";

Text text(std::string_view value) { return std::string(value); }
Text path_text(const std::string& path) { return path.empty() ? Text() : Text(path); }

// Name, value, group, help; form, task, use; set; show.
constexpr Setting kSettings[] = {
    {"data", "FILE", "Task", "train on this CSV file (see below) instead of synthetic data",
     Form::kText, Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.data_path = path_from(n, v); },
     [](const O& o) { return path_text(o.data_path); }},
    {"target", "COLUMN", "Task", "the column of --data to learn (default: the last)", Form::kText,
     Task::kData, Use::kRun, [](O& o, Name n, Value v) { o.target_column = path_from(n, v); },
     [](const O& o) { return path_text(o.target_column); }},
    {"steps", "N", "Task", "training steps on synthetic data (default 20)", Form::kNumber,
     Task::kSynthetic, Use::kFree,
     [](O& o, Name n, Value v) { o.steps = integer_in(n, v, 1, kMaxCount); },
     [](const O& o) { return text(cat(o.steps)); }},
    {"epochs", "N", "Task", "passes over the training split of --data (default 40)", Form::kNumber,
     Task::kData, Use::kFree,
     [](O& o, Name n, Value v) { o.epochs = integer_in(n, v, 1, kMaxCount); },
     [](const O& o) { return text(cat(o.epochs)); }},
    {"hidden", "N", "Task", "width of the hidden layer with --data (default 128)", Form::kNumber,
     Task::kData, Use::kRun,
     [](O& o, Name n, Value v) { o.hidden = integer_in(n, v, 1, kMaxWidth); },
     [](const O& o) { return text(cat(o.hidden)); }},

    {"batch", "N", "Training", "rows per step (default 8; with --data 16)", Form::kNumber,
     Task::kAny, Use::kRun, [](O& o, Name n, Value v) { o.batch = integer_in(n, v, 1, kMaxWidth); },
     [](const O& o) { return text(cat(o.batch)); }},
    {"optimizer", "NAME", "Training", "adamw or sgd (default adamw)", Form::kText, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.optimizer = optimizer_value(n, v); },
     [](const O& o) { return text(name_of(o.optimizer)); }},
    {"lr", "X", "Training", "learning rate (default 1e-2; with --data 3e-3)", Form::kNumber,
     Task::kAny, Use::kRun, [](O& o, Name n, Value v) { o.lr = not_negative(n, v); },
     [](const O& o) { return text(cat(o.lr)); }},
    {"momentum", "X", "Training", "of sgd (default 0)", Form::kNumber, Task::kAny, Use::kRun,
     [](O& o, Name n, Value v) { o.momentum = not_negative(n, v); },
     [](const O& o) { return text(cat(o.momentum)); }},
    {"weight-decay", "X", "Training", "default 1e-2; with sgd 0", Form::kNumber, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.weight_decay = not_negative(n, v); },
     [](const O& o) { return text(cat(o.weight_decay)); }},
    {"clip", "WHAT", "Training",
     "norm: the global L2 norm; value: each element; none (default norm)", Form::kText, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.clip = clip_value(n, v); },
     [](const O& o) { return text(amp::name_of(o.clip)); }},
    {"max-norm", "X", "Training", "global L2 norm to clip gradients to; inf: never (default 1)",
     Form::kNumber, Task::kAny, Use::kRun,
     [](O& o, Name n, Value v) { o.max_norm = positive_or_inf(n, v); },
     [](const O& o) { return text(cat(o.max_norm)); }},
    {"clip-value", "X", "Training", "largest element with --clip value (default 1)", Form::kNumber,
     Task::kAny, Use::kRun, [](O& o, Name n, Value v) { o.clip_value = positive_or_inf(n, v); },
     [](const O& o) { return text(cat(o.clip_value)); }},
    {"seed", "N", "Training", "of initial values, data and shuffling (default 0)", Form::kNumber,
     Task::kAny, Use::kRun, [](O& o, Name n, Value v) { o.seed = any_unsigned(n, v); },
     [](const O& o) { return text(cat(o.seed)); }},
    {"device", "NAME", "Training", "cpu or cuda (default cpu)", Form::kText, Task::kAny, Use::kRun,
     [](O& o, Name n, Value v) { o.device = device_value(n, v); },
     [](const O& o) { return text(o.device.str()); }},
    {"precision", "NAME", "Training", "fp32, bf16 or fp16 (default bf16)", Form::kText, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.dtype = precision_value(n, v); },
     [](const O& o) { return text(name_of_precision(o.dtype)); }},
    {"fp32", "", "Training", "the same as --precision fp32", Form::kSwitch, Task::kAny, Use::kAlias,
     nullptr, nullptr},
    {"bf16", "", "Training", "the same as --precision bf16", Form::kSwitch, Task::kAny, Use::kAlias,
     nullptr, nullptr},
    {"fp16", "", "Training", "the same as --precision fp16", Form::kSwitch, Task::kAny, Use::kAlias,
     nullptr, nullptr},
    {"no-belts", "", "Training",
     "the loop that this project warns of: no loss scaling, no check\n"
     "for Inf and NaN, no clipping",
     Form::kSwitch, Task::kAny, Use::kRun,
     [](O& o, Name n, Value v) { o.belts = !switch_value(n, v); },
     [](const O& o) { return text(o.belts ? "false" : "true"); }},

    {"warmup", "N", "Schedule", "steps in which the rate rises to --lr (default 0)", Form::kNumber,
     Task::kAny, Use::kRun,
     [](O& o, Name n, Value v) { o.warmup_steps = integer_in(n, v, 0, kMaxCount); },
     [](const O& o) { return text(cat(o.warmup_steps)); }},
    {"decay", "NAME", "Schedule", "constant, linear or cosine, to the end (default constant)",
     Form::kText, Task::kAny, Use::kRun, [](O& o, Name n, Value v) { o.decay = decay_value(n, v); },
     [](const O& o) { return text(optim::name_of(o.decay)); }},
    {"min-lr", "X", "Schedule", "where a decay ends (default 0)", Form::kNumber, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.min_lr = not_negative(n, v); },
     [](const O& o) { return text(cat(o.min_lr)); }},
    {"advance-on-skip", "", "Schedule", "skipped steps count for the schedule, too", Form::kSwitch,
     Task::kAny, Use::kRun, [](O& o, Name n, Value v) { o.advance_on_skip = switch_value(n, v); },
     [](const O& o) { return text(o.advance_on_skip ? "true" : "false"); }},

    {"inject", "WHAT", "Faults",
     "put a fault into the run (see below); may repeat\n"
     "(default inf-grad@5; with --data none)",
     Form::kList, Task::kAny, Use::kRun, nullptr, nullptr},

    {"init-scale", "X", kScaler, "first loss scale (default 65536)", Form::kNumber, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.scaler.init_scale = scale_value(n, v); },
     [](const O& o) { return text(cat(o.scaler.init_scale)); }},
    {"growth-interval", "N", kScaler, "good steps in a row before the scale grows (default 2000)",
     Form::kNumber, Task::kAny, Use::kRun,
     [](O& o, Name n, Value v) { o.scaler.growth_interval = integer_in(n, v, 1, kMaxCount); },
     [](const O& o) { return text(cat(o.scaler.growth_interval)); }},
    {"growth-factor", "X", kScaler, "factor of growth (default 2)", Form::kNumber, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.scaler.growth_factor = above_one(n, v); },
     [](const O& o) { return text(cat(o.scaler.growth_factor)); }},
    {"backoff-factor", "X", kScaler, "factor after a non-finite gradient (default 0.5)",
     Form::kNumber, Task::kAny, Use::kRun,
     [](O& o, Name n, Value v) { o.scaler.backoff_factor = between_0_and_1(n, v); },
     [](const O& o) { return text(cat(o.scaler.backoff_factor)); }},
    {"min-scale", "X", kScaler, "where backing off stops (default 1)", Form::kNumber, Task::kAny,
     Use::kRun, [](O& o, Name n, Value v) { o.scaler.min_scale = scale_value(n, v); },
     [](const O& o) { return text(cat(o.scaler.min_scale)); }},
    {"max-scale", "X", kScaler, "where growing stops (default the largest float32)", Form::kNumber,
     Task::kAny, Use::kRun, [](O& o, Name n, Value v) { o.scaler.max_scale = scale_value(n, v); },
     [](const O& o) { return text(cat(o.scaler.max_scale)); }},

    {"max-skip-rate", "X", "Health",
     "stop with status 3 when more than this share of the last 1,000\n"
     "steps was skipped (default 1: never); skips by which the scale falls\n"
     "before the first step that is taken do not count",
     Form::kNumber, Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.health.max_skip_rate = share(n, v); },
     [](const O& o) { return text(cat(o.health.max_skip_rate)); }},
    {"alert-after", "N", "Health", "... for so many steps in a row (default 100)", Form::kNumber,
     Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.health.alert_after = integer_in(n, v, 1, kMaxCount); },
     [](const O& o) { return text(cat(o.health.alert_after)); }},
    {"max-skips-in-a-row", "N", "Health", "warn of more of them (default 10)", Form::kNumber,
     Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.health.most_skips_in_a_row = integer_in(n, v, 1, kMaxCount); },
     [](const O& o) { return text(cat(o.health.most_skips_in_a_row)); }},

    {"csv", "FILE", "Output", "write one row per step to this file, replacing it", Form::kText,
     Task::kAny, Use::kFree, [](O& o, Name n, Value v) { o.csv_path = path_from(n, v); },
     [](const O& o) { return path_text(o.csv_path); }},
    {"plot", "FILE", "Output", "draw the run, as .svg or .png (needs gnuplot)", Form::kText,
     Task::kAny, Use::kFree, [](O& o, Name n, Value v) { o.plot_path = path_from(n, v); },
     [](const O& o) { return path_text(o.plot_path); }},
    {"run-card", "FILE", "Output", "write what was run, and how it went, as Markdown", Form::kText,
     Task::kAny, Use::kFree, [](O& o, Name n, Value v) { o.run_card_path = path_from(n, v); },
     [](const O& o) { return path_text(o.run_card_path); }},
    {"log-every", "N", "Output",
     "print every N-th step, and all skips; with --data every N-th epoch\n(default 1)",
     Form::kNumber, Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.log_every = integer_in(n, v, 1, kMaxCount); },
     [](const O& o) { return text(cat(o.log_every)); }},
    {"quiet", "", "Output", "print the summary only", Form::kSwitch, Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.quiet = switch_value(n, v); },
     [](const O& o) { return text(o.quiet ? "true" : "false"); }},

    {"checkpoint", "FILE", "Checkpoints",
     "save the whole state of the run to this file, at its end or when\n"
     "it is interrupted (safetensors)",
     Form::kText, Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.checkpoint_path = path_from(n, v); },
     [](const O& o) { return path_text(o.checkpoint_path); }},
    {"checkpoint-every", "N", "Checkpoints", "... and after every N steps", Form::kNumber,
     Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.checkpoint_every = integer_in(n, v, 1, kMaxCount); },
     [](const O& o) { return o.checkpoint_every > 0 ? text(cat(o.checkpoint_every)) : Text(); }},
    {"resume", "FILE", "Checkpoints",
     "go on from a checkpoint, with its settings; the rows that --csv\n"
     "has for later steps are dropped first",
     Form::kText, Task::kAny, Use::kFree,
     [](O& o, Name n, Value v) { o.resume_path = path_from(n, v); },
     [](const O& o) { return path_text(o.resume_path); }},
};

/// Levenshtein distance: insertions, deletions and replacements that make `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::span<const Setting> settings() { return kSettings; }

const Setting* find_setting(std::string_view name) {
  const auto found = std::ranges::find(kSettings, name, &Setting::name);
  return found == std::end(kSettings) ? nullptr : found;
}

std::string_view nearest_setting(std::string_view name) {
  return std::ranges::min_element(settings(), {},
                                  [&](const Setting& setting) {
                                    const bool is_alias = setting.use == Setting::Use::kAlias;
                                    return is_alias ? SIZE_MAX : edit_distance(name, setting.name);
                                  })
      ->name;
}

}  // namespace halfstep::demo
