// The table of settings and their checks.
#include "halfstep/demo/options.h"

#include <cmath>
#include <limits>

#include "halfstep/core/error.h"
#include "halfstep/core/kernels.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr double kSmallestScale = 0x1p-126;  // what GradScaler allows

template <class... Rule>
[[noreturn]] void refuse(std::string_view name, std::string_view value, const Rule&... rule) {
  throw UsageError(cat("--", name, " ", quote(value), " given; it must be ", rule...));
}

int64_t integer_in(std::string_view name, std::string_view value, int64_t low, int64_t high) {
  const std::optional<int64_t> number = parse_integer(value);
  if (!number || *number < low || *number > high) {
    refuse(name, value, "a whole number from ", low, " to ", high);
  }
  return *number;
}

/// A number for which `holds` is true; `rule` says so in words.
double number_that(std::string_view name, std::string_view value, bool (*holds)(double),
                   std::string_view rule) {
  const std::optional<double> number = parse_number(value);
  if (!number || !holds(*number)) refuse(name, value, rule);
  return *number;
}

double scale_value(std::string_view name, std::string_view value) {
  return number_that(
      name, value, [](double x) { return x >= kSmallestScale && x <= kLargestFloat; },
      "a number > 0 within the normal range of float32");
}

void set_precision(DemoOptions& options, std::string_view name, std::string_view value) {
  if (value == "fp32") {
    options.dtype = DType::F32;
  } else if (value == "bf16") {
    options.dtype = DType::BF16;
  } else if (value == "fp16") {
    options.dtype = DType::F16;
  } else {
    refuse(name, value, "fp32, bf16 or fp16");
  }
}

/// --fp32, --bf16, --fp16: the name is the value.
void set_precision_by_name(DemoOptions& options, std::string_view name, std::string_view) {
  set_precision(options, "precision", name);
}

void set_device(DemoOptions& options, std::string_view name, std::string_view value) {
  constexpr std::string_view kCuda = "cuda";
  if (value == "cpu") {
    options.device = Device::cpu();
  } else if (value == kCuda) {
    options.device = Device::cuda();
  } else {
    refuse(name, value, "cpu or cuda");
  }
  if (!is_available(options.device)) {
    throw UsageError("--device cuda given, but this build has no CUDA; it must be cpu");
  }
}

std::string path_from(std::string_view name, std::string_view value) {
  if (value.empty()) refuse(name, value, "the path of a file");
  return std::string(value);
}

using O = DemoOptions;
using Name = std::string_view;
using Value = std::string_view;
using Task = Setting::Task;

constexpr int64_t kMaxCount = 1'000'000'000;
constexpr int64_t kMaxWidth = 65'536;  // of a batch or a layer: what fits in memory

constexpr Setting kSettings[] = {
    {"data", "FILE", "Task", "train on this CSV file: a header, numeric columns, the last a class",
     Task::kAny, [](O& o, Name n, Value v) { o.data_path = path_from(n, v); }},
    {"steps", "N", "Task", "training steps on synthetic data (default 20)", Task::kSynthetic,
     [](O& o, Name n, Value v) { o.steps = integer_in(n, v, 1, kMaxCount); }},
    {"epochs", "N", "Task", "passes over the training split of --data (default 40)", Task::kData,
     [](O& o, Name n, Value v) { o.epochs = integer_in(n, v, 1, kMaxCount); }},
    {"hidden", "N", "Task", "width of the hidden layer with --data (default 128)", Task::kData,
     [](O& o, Name n, Value v) { o.hidden = integer_in(n, v, 1, kMaxWidth); }},

    {"batch", "N", "Training", "rows per step (default 8; with --data 16)", Task::kAny,
     [](O& o, Name n, Value v) { o.batch = integer_in(n, v, 1, kMaxWidth); }},
    {"lr", "X", "Training", "learning rate of AdamW (default 1e-2; with --data 3e-3)", Task::kAny,
     [](O& o, Name n, Value v) {
       o.lr = number_that(
           n, v, [](double x) { return x >= 0.0 && x <= kLargestFloat; },
           "a finite float32 number >= 0");
     }},
    {"max-norm", "X", "Training", "global L2 norm to clip gradients to; inf: never (default 1)",
     Task::kAny,
     [](O& o, Name n, Value v) {
       o.max_norm = number_that(
           n, v, [](double x) { return x > 0.0; }, "a number > 0, or inf to never clip");
     }},
    {"seed", "N", "Training", "of initial values, data and shuffling (default 0)", Task::kAny,
     [](O& o, Name n, Value v) {
       const std::optional<uint64_t> number = parse_unsigned(v);
       if (!number) refuse(n, v, "a whole number from 0 to 2^64 - 1");
       o.seed = *number;
     }},
    {"device", "NAME", "Training", "cpu or cuda (default cpu)", Task::kAny, set_device},
    {"precision", "NAME", "Training", "fp32, bf16 or fp16 (default bf16)", Task::kAny,
     set_precision},
    {"fp32", "", "Training", "the same as --precision fp32", Task::kAny, set_precision_by_name},
    {"bf16", "", "Training", "the same as --precision bf16", Task::kAny, set_precision_by_name},
    {"fp16", "", "Training", "the same as --precision fp16", Task::kAny, set_precision_by_name},

    {"inject", "WHAT", "Faults",
     "inf-grad@STEP: an Inf in a gradient; target-spike@STEP:FACTOR: the\n"
     "targets times FACTOR; none. May repeat, steps count from 0\n"
     "(default inf-grad@5; with --data none)",
     Task::kAny, nullptr},  // all its values together: parse_injections

    {"init-scale", "X", "Gradient scaler (fp16)", "first loss scale (default 65536)", Task::kAny,
     [](O& o, Name n, Value v) { o.scaler.init_scale = scale_value(n, v); }},
    {"growth-interval", "N", "Gradient scaler (fp16)",
     "good steps in a row before the scale grows (default 2000)", Task::kAny,
     [](O& o, Name n, Value v) { o.scaler.growth_interval = integer_in(n, v, 1, kMaxCount); }},
    {"growth-factor", "X", "Gradient scaler (fp16)", "factor of growth (default 2)", Task::kAny,
     [](O& o, Name n, Value v) {
       o.scaler.growth_factor = number_that(
           n, v, [](double x) { return x > 1.0 && std::isfinite(x); }, "a finite number > 1");
     }},
    {"backoff-factor", "X", "Gradient scaler (fp16)",
     "factor after a non-finite gradient (default 0.5)", Task::kAny,
     [](O& o, Name n, Value v) {
       o.scaler.backoff_factor = number_that(
           n, v, [](double x) { return x > 0.0 && x < 1.0; }, "a number between 0 and 1");
     }},
    {"min-scale", "X", "Gradient scaler (fp16)", "where backing off stops (default 1)", Task::kAny,
     [](O& o, Name n, Value v) { o.scaler.min_scale = scale_value(n, v); }},
    {"max-scale", "X", "Gradient scaler (fp16)",
     "where growing stops (default the largest float32)", Task::kAny,
     [](O& o, Name n, Value v) { o.scaler.max_scale = scale_value(n, v); }},

    {"csv", "FILE", "Output", "write one row per step to this file, replacing it", Task::kAny,
     [](O& o, Name n, Value v) { o.csv_path = path_from(n, v); }},
};

void check_combination(const GivenSettings& given, const DemoOptions& options) {
  std::string precision;
  for (const Name name : {"precision", "fp32", "bf16", "fp16"}) {
    if (!given.contains(name)) continue;
    if (!precision.empty()) {
      throw UsageError(cat("--", precision, " and --", name, " given; one of them must go"));
    }
    precision = name;
  }

  const amp::GradScalerOptions& scaler = options.scaler;
  if (!(scaler.min_scale <= scaler.init_scale && scaler.init_scale <= scaler.max_scale)) {
    throw UsageError(cat("--init-scale ", scaler.init_scale, ", --min-scale ", scaler.min_scale,
                         " and --max-scale ", scaler.max_scale,
                         " are in force; they must be min <= init <= max"));
  }

  if (options.has_data()) return;  // the number of steps depends on the file
  for (const Injection& injection : options.injections) {
    if (given.contains("inject") && injection.step >= options.steps) {
      throw UsageError(cat("--inject ", injection.str(), " given, but the run has ", options.steps,
                           " steps; the step must be from 0 to ", options.steps - 1));
    }
  }
}

}  // namespace

std::span<const Setting> settings() { return kSettings; }

DemoOptions default_options(bool has_data) {
  DemoOptions options;
  if (has_data) {
    options.hidden = 128;
    options.batch = 16;
    options.lr = 3e-3;
  } else {
    options.injections = {{.kind = Injection::Kind::kInfGrad, .step = 5}};
  }
  return options;
}

DemoOptions make_options(const GivenSettings& given) {
  const bool has_data = given.contains("data");
  DemoOptions options = default_options(has_data);
  for (const Setting& setting : kSettings) {
    const auto found = given.find(setting.name);
    if (found == given.end()) continue;
    const std::vector<std::string>& values = found->second;
    if (setting.name == "inject") {
      options.injections = parse_injections(values);
      continue;
    }
    if (values.size() != 1) {
      throw UsageError(cat("--", setting.name, " given ", values.size(), " times; once is right"));
    }
    if (setting.task == Task::kData && !has_data) {
      throw UsageError(cat("--", setting.name, " given without --data; it belongs to a data file"));
    }
    if (setting.task == Task::kSynthetic && has_data) {
      throw UsageError(
          cat("--", setting.name, " given with --data; the length of such a run is --epochs"));
    }
    setting.apply(options, setting.name, values.front());
  }
  options.scaler.enabled = options.dtype == DType::F16;
  check_combination(given, options);
  return options;
}

}  // namespace halfstep::demo
